package main

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// transacting is the program for a broker that asks soon and often. What is delivered in the end is for the caller to read. Message
// n is, by n mod 6: committed, rolled back, undecided and then committed, undecided and then rolled back, undecided and then
// committed, undecided twice and then committed.
func transacting(s *session) bool {
	good := true
	for _, one := range []struct {
		name string
		work scenario
	}{{"transactions", transactions}, {"adopts", adopts}, {"orphans", orphans}} {
		result := run(one.name, one.work, s)
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
		good = good && result.OK
	}
	return good
}

// listener decides by a message's number, and how often it was asked about it (0: when it is executed).
type listener struct {
	mutex  sync.Mutex
	asked  map[int]int
	decide func(number, times int) primitive.LocalTransactionState
}

func newListener(decide func(number, times int) primitive.LocalTransactionState) *listener {
	return &listener{asked: map[int]int{}, decide: decide}
}

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return l.decide(number(message), 0)
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	n := number(&message.Message)
	l.asked[n]++
	return l.decide(n, l.asked[n])
}

// settled counts the numbers that were asked about often enough.
func (l *listener) settled(enough func(number, times int) bool) (count, questions int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for n, times := range l.asked {
		questions += times
		if enough(n, times) {
			count++
		}
	}
	return count, questions
}

func (s *session) transactionProducer(topic string, l primitive.TransactionListener, options ...producer.Option) (rocketmq.TransactionProducer, error) {
	p, err := rocketmq.NewTransactionProducer(l, append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		producer.WithGroupName(topic + "-group"),
		producer.WithInstanceName(topic + "-group"),
		producer.WithCredentials(credentials(producerUser)),
		producer.WithRetry(0),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// transactions: every kind, by this producer alone.
func transactions(s *session, topic string) (string, error) {
	l := newListener(func(n, times int) primitive.LocalTransactionState {
		switch {
		case n%6 == 1, n%6 == 3 && times > 0:
			return primitive.RollbackMessageState
		case n%6 == 0, n%6 != 5 && times > 0, n%6 == 5 && times > 1:
			return primitive.CommitMessageState
		}
		return primitive.UnknowState
	})
	p, err := s.transactionProducer(topic, l)
	if err != nil {
		return "", err
	}
	id := ""
	for _, message := range newLetters(topic, s.count).sent {
		result, err := p.SendMessageInTransaction(patiently(), message)
		if err != nil {
			return "", err
		}
		id = result.OffsetMsgID
	}
	enough := func(n, times int) bool { return n%6 > 1 && (n%6 != 5 || times > 1) }
	err = eventually("every question of "+topic, func() bool {
		count, _ := l.settled(enough)
		return count >= s.count-s.count/6*2
	})
	if err != nil {
		return "", err
	}
	needless, questions := l.settled(func(n, _ int) bool { return n%6 < 2 })
	if err = s.committed(id, topic, func(n int) bool { return n%6 != 1 && n%6 != 3 }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d transactions, %d questions, %d needless", s.count, questions, needless), p.Shutdown()
}

// committed waits until the broker that gave the id has every message that is to be delivered: answers go one-way.
func (s *session) committed(offsetMsgID, topic string, wanted func(number int) bool) error {
	broker, err := brokerOf(offsetMsgID)
	if err != nil {
		return err
	}
	return eventually("all that is committed in "+topic, func() bool {
		for n := range s.count {
			if wanted(n) && !indexed(broker, topic, fmt.Sprint("key-", n)) {
				return false
			}
		}
		return true
	})
}

// adopts answers for somebody else's messages: those with an even number are committed.
func adopts(s *session, topic string) (string, error) {
	l := newListener(func(n, times int) primitive.LocalTransactionState {
		switch {
		case times == 0:
			return primitive.UnknowState
		case n%2 == 0:
			return primitive.CommitMessageState
		}
		return primitive.RollbackMessageState
	})
	p, err := s.transactionProducer(topic, l)
	if err != nil {
		return "", err
	}
	// a producer that has sent nothing is not known to the broker
	door := newLetters(topic+"-door", 1).sent[0]
	result, err := p.SendMessageInTransaction(patiently(), door)
	if err != nil {
		return "", err
	}
	any := func(int, int) bool { return true }
	err = eventually("every question of "+topic, func() bool {
		count, _ := l.settled(any)
		return count >= s.count
	})
	if err == nil {
		err = s.committed(result.OffsetMsgID, topic, func(n int) bool { return n%2 == 0 })
	}
	count, _ := l.settled(any)
	if err == nil {
		err = p.Shutdown()
	}
	return fmt.Sprintf("%d adopted", count), err
}

// orphans leaves its messages undecided, also when it is asked, and ends.
func orphans(s *session, topic string) (string, error) {
	p, err := s.transactionProducer(topic, newListener(func(int, int) primitive.LocalTransactionState { return primitive.UnknowState }))
	if err != nil {
		return "", err
	}
	for _, message := range newLetters(topic, s.count).sent {
		if _, err := p.SendMessageInTransaction(patiently(), message); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d left", s.count), p.Shutdown()
}
