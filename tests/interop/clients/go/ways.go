package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const batch = 8

// ways: where each way of sending can go, to a queue (number 2) and by a selector (message n to queue n mod 4). The first message of a
// topic is sent plainly and makes it. What arrives where is for the caller to read.
var ways = map[string]scenario{
	"send_by_selector":     way(ourSelector, 1, inTurn),
	"async_to_queue":       way(producer.NewManualQueueSelector, 1, atOnce),
	"async_by_selector":    way(ourSelector, 1, atOnce),
	"oneway_to_queue":      way(producer.NewManualQueueSelector, 1, oneway),
	"oneway_by_selector":   way(ourSelector, 1, oneway),
	"batch_to_queue":       way(producer.NewManualQueueSelector, batch, inTurn),
	"batch_async":          way(producer.NewRoundRobinQueueSelector, batch, atOnce),
	"batch_async_to_queue": way(producer.NewManualQueueSelector, batch, atOnce),
	"batch_oneway":         way(producer.NewRoundRobinQueueSelector, batch, oneway),
	"levels_oneway":        levelsOneway,
}

// byNumber is a selector of one's own.
type byNumber struct{}

func (byNumber) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	return queues[number(message)%len(queues)]
}

func ourSelector() producer.QueueSelector { return byNumber{} }

type sending func(p rocketmq.Producer, l *letters, parts [][]*primitive.Message) error

// way sends by a producer's selector, a call for so many messages, of which each names the third queue: only the manual selector looks.
func way(selector func() producer.QueueSelector, size int, send sending) scenario {
	return func(s *session, topic string) (string, error) {
		l, queues, err := s.begun(topic)
		if err != nil {
			return "", err
		}
		for _, queue := range queues {
			if queue.QueueId == 2 {
				for _, message := range l.sent[1:] {
					message.Queue = queue
				}
			}
		}
		p, err := s.producer(topic, producer.WithQueueSelector(selector()))
		if err != nil {
			return "", err
		}
		if err = send(p, l, inParts(l.sent[1:], size)); err != nil {
			return "", err
		}
		return s.compare(l)
	}
}

func inParts(messages []*primitive.Message, size int) (parts [][]*primitive.Message) {
	for from := 0; from < len(messages); from += size {
		parts = append(parts, messages[from:min(from+size, len(messages))])
	}
	return parts
}

// allAcknowledged: the result of a batch has no message's id or place of its own.
func (l *letters) allAcknowledged(part []*primitive.Message, result *primitive.SendResult) error {
	if len(part) == 1 {
		return l.acknowledged(part[0], result)
	}
	if result.Status != primitive.SendOK {
		return fmt.Errorf("batch: %v", result.Status)
	}
	return nil
}

func inTurn(p rocketmq.Producer, l *letters, parts [][]*primitive.Message) error {
	for _, part := range parts {
		result, err := p.SendSync(patiently(), part...)
		for ; err != nil; result, err = p.SendSync(patiently(), part...) {
			if err = l.failed(err, part...); err != nil {
				return err
			}
		}
		if err = l.allAcknowledged(part, result); err != nil {
			return err
		}
	}
	return nil
}

// atOnce: asynchronously, and then in turn what failed.
func atOnce(p rocketmq.Producer, l *letters, parts [][]*primitive.Message) error {
	type answer struct {
		part   []*primitive.Message
		result *primitive.SendResult
		err    error
	}
	answers := make(chan answer, len(parts))
	for _, part := range parts {
		var told sync.Once // the client calls back twice for a send that failed
		tell := func(_ context.Context, result *primitive.SendResult, err error) {
			told.Do(func() { answers <- answer{part, result, err} })
		}
		if err := p.SendAsync(patiently(), tell, part...); err != nil {
			tell(nil, nil, err)
		}
	}
	var again [][]*primitive.Message
	for range parts {
		a := <-answers
		if a.err == nil {
			a.err = l.allAcknowledged(a.part, a.result)
		} else if a.err = l.failed(a.err, a.part...); a.err == nil {
			again = append(again, a.part)
		}
		if a.err != nil {
			return a.err
		}
	}
	return inTurn(p, l, again)
}

func oneway(p rocketmq.Producer, l *letters, parts [][]*primitive.Message) error {
	for _, part := range parts {
		for err := p.SendOneWay(patiently(), part...); err != nil; err = p.SendOneWay(patiently(), part...) {
			if err = l.failed(err, part...); err != nil {
				return err
			}
		}
	}
	return nil
}

func levelsOneway(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := levelled(topic)
	if err = s.send(p, l, 0, 1); err != nil {
		return "", err
	}
	if err = oneway(p, l, inParts(l.sent[1:], 1)); err != nil {
		return "", err
	}
	return s.compare(l)
}

// spaced keeps the topic that the broker's questions name.
type spaced struct {
	*listener
	topics map[string]bool
}

func (t *spaced) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	t.mutex.Lock()
	t.topics[message.Topic] = true
	t.mutex.Unlock()
	return t.listener.CheckLocalTransaction(message)
}

// namespaceTransactions: by n mod 3, committed, rolled back, and committed when the broker asks. Sends take the topic without its
// namespace, and write the namespace into the message; a question names the topic with it ("TODO: add namespace support" in the client).
func namespaceTransactions(s *session, topic string) (string, error) {
	states := []primitive.LocalTransactionState{primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnknowState}
	asked := &spaced{newListener(func(n, times int) primitive.LocalTransactionState {
		if n%3 == 2 && times > 0 {
			return primitive.CommitMessageState
		}
		return states[n%3]
	}), map[string]bool{}}
	p, err := s.transactionProducer(topic, asked, producer.WithNamespace(s.prefix+"-space"))
	if err != nil {
		return "", err
	}
	l := newLetters(topic, few)
	id := ""
	for _, message := range l.sent {
		result, err := p.SendMessageInTransaction(patiently(), message)
		for ; err != nil; result, err = p.SendMessageInTransaction(patiently(), message) {
			if err = l.failed(err, message); err != nil {
				return "", err
			}
			message.Topic = topic
		}
		if err = l.acknowledged(message, result.SendResult); err != nil {
			return "", err
		}
		id = result.OffsetMsgID
	}
	if err = eventually("every question of "+topic, func() bool {
		count, _ := asked.settled(func(n, _ int) bool { return n%3 == 2 })
		return count == few/3
	}); err != nil {
		return "", err
	}
	full := s.prefix + "-space%" + topic
	if err = s.committed(id, full, func(n int) bool { return n < few && n%3 != 1 }); err != nil {
		return "", err
	}
	s.remember(l)
	asked.mutex.Lock()
	defer asked.mutex.Unlock()
	if len(asked.topics) != 1 || !asked.topics[full] {
		return "", fmt.Errorf("questions named %v", asked.topics)
	}
	return fmt.Sprintf("%d transactions", few), p.Shutdown()
}
