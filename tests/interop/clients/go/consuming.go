package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// inbox gathers what a push consumer's handler is given.
type inbox struct {
	mutex    sync.Mutex
	received []*primitive.MessageExt
}

func (b *inbox) handle(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.received = append(b.received, messages...)
	return consumer.ConsumeSuccess, nil
}

func (b *inbox) all() []*primitive.MessageExt {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return append([]*primitive.MessageExt(nil), b.received...)
}

func (s *session) push(group, instance, topic, expression string, into *inbox) (rocketmq.PushConsumer, error) {
	return s.pushSelected(group, instance, topic, consumer.MessageSelector{Type: consumer.TAG, Expression: expression}, into)
}

func (s *session) pushSelected(group, instance, topic string, selector consumer.MessageSelector, into *inbox) (rocketmq.PushConsumer, error) {
	return s.pushAs(consumerUser, group, instance, topic, selector, into)
}

func (s *session) pushAs(user, group, instance, topic string, selector consumer.MessageSelector, into *inbox) (rocketmq.PushConsumer, error) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(group+"-"+instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials(user)),
	)
	if err != nil {
		return nil, err
	}
	if err = c.Subscribe(topic, selector, into.handle); err != nil {
		return nil, err
	}
	return c, c.Start()
}

// started: a producer, and letters of which the first `ready` are sent.
func (s *session) started(topic string, ready int) (rocketmq.Producer, *letters, error) {
	p, err := s.producer(topic)
	if err != nil {
		return nil, nil, err
	}
	l := newLetters(topic, s.count)
	return p, l, s.send(p, l, 0, ready)
}

func pushFromFirst(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, s.count/2)
	if err != nil {
		return "", err
	}
	box := &inbox{}
	c, err := s.push(topic+"-group", "a", topic, "*", box)
	if err != nil {
		return "", err
	}
	if err = eventually("first half", func() bool { return l.distinct(box.all()) >= s.count/2 }); err != nil {
		return "", err
	}
	if err = s.send(p, l, s.count/2, s.count); err != nil {
		return "", err
	}
	if err = eventually("second half", func() bool { return l.distinct(box.all()) >= s.count }); err != nil {
		return "", err
	}
	if err = c.Shutdown(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d messages", len(box.all())), l.check(l.sent, box.all(), true)
}

func pushTagFilter(s *session, topic string) (string, error) {
	_, l, err := s.started(topic, s.count)
	if err != nil {
		return "", err
	}
	wanted := l.tagged("red", "blue")
	box := &inbox{}
	c, err := s.push(topic+"-group", "a", topic, "red || blue", box)
	if err != nil {
		return "", err
	}
	if err = eventually("red and blue", func() bool { return l.distinct(box.all()) >= len(wanted) }); err != nil {
		return "", err
	}
	if err = c.Shutdown(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d messages", len(wanted), s.count), l.check(wanted, box.all(), false)
}

func pushSQLFilter(s *session, topic string) (string, error) {
	_, l, err := s.started(topic, s.count)
	if err != nil {
		return "", err
	}
	var wanted []*primitive.Message
	for _, message := range l.tagged("red", "blue") {
		if n := number(message); n >= 20 && n <= 79 {
			wanted = append(wanted, message)
		}
	}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n BETWEEN 20 AND 79 AND TAGS IN ('red', 'blue')"}
	box := &inbox{}
	c, err := s.pushSelected(topic+"-group", "a", topic, selector, box)
	if err != nil {
		return "", err
	}
	if err = eventually("what was selected", func() bool { return l.distinct(box.all()) >= len(wanted) }); err != nil {
		return "", err
	}
	if err = c.Shutdown(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d messages", len(wanted), s.count), l.check(wanted, box.all(), false)
}

// settled waits until the group's offsets at the broker are the ends of the topic's queues: all that was in hand is done with,
// and who takes over a queue now gets none of it again. The client commits one-way, every five seconds and when it is told to.
func settled(broker, group, topic string, queues int, c rocketmq.PushConsumer) error {
	return eventually(topic+": offsets at the queues' ends", func() bool {
		c.(interface{ PersistConsumerOffset() error }).PersistConsumerOffset()
		behind, err := lag(broker, group, topic, queues)
		return err == nil && behind == 0
	})
}

const round = 8

// pushTwoBalance: the first consumes a half alone; then rounds of messages are sent until in one of them each consumer got
// some queues and no queue went to both. Every message arrives. While queues move from one consumer to the other a message
// may be seen twice (the giving side had it in hand), and only then.
func pushTwoBalance(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, s.count/2)
	if err != nil {
		return "", err
	}
	broker, err := brokerOf(l.results[0].OffsetMsgID)
	if err != nil {
		return "", err
	}
	l.sent = l.sent[:s.count/2]
	boxes := []*inbox{{}, {}}
	seen := func() []*primitive.MessageExt { return once(append(boxes[0].all(), boxes[1].all()...)) }
	for i, box := range boxes {
		c, err := s.push(topic+"-group", string(rune('a'+i)), topic, "*", box)
		if err != nil {
			return "", err
		}
		defer c.Shutdown()
		if i == 0 {
			if err = eventually("first half", func() bool { return l.distinct(box.all()) >= s.count/2 }); err != nil {
				return "", err
			}
			if err = settled(broker, topic+"-group", topic, 4, c); err != nil {
				return "", err
			}
		}
	}
	rounds := 0
	if waiting := eventually("a round in which both have their own queues", func() bool {
		from := len(l.sent)
		for range round {
			l.add([]byte(fmt.Sprintf("letter %d %s", len(l.sent), text)))
		}
		if err = s.send(p, l, from, len(l.sent)); err != nil {
			return true
		}
		if err = eventually("all of the round", func() bool { return l.distinct(seen()) == len(l.sent) }); err != nil {
			return true
		}
		rounds++
		return shared(boxes, from)
	}); waiting != nil {
		return "", waiting
	}
	if err != nil {
		return "", err
	}
	first, second := len(boxes[0].all()), len(boxes[1].all())
	detail := fmt.Sprintf("%d and %d messages, %d twice, %d rounds", first, second, first+second-len(l.sent), rounds)
	return detail, l.check(l.sent, seen(), true)
}

// shared: of the messages from number `from` on, both consumers got some, and none from the same queue.
func shared(boxes []*inbox, from int) bool {
	queues := []map[int]bool{{}, {}}
	for i, box := range boxes {
		for _, message := range box.all() {
			if number(&message.Message) >= from {
				queues[i][message.Queue.QueueId] = true
			}
		}
	}
	for queue := range queues[0] {
		if queues[1][queue] {
			return false
		}
	}
	return len(queues[0]) > 0 && len(queues[1]) > 0
}

// pushResume: the first half is consumed by a process of its own. (A consumer that was shut down in this process comes back:
// its client's rebalance connects again after Shutdown, and half the queues stay with that ghost.)
func pushResume(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, s.count/2)
	if err != nil {
		return "", err
	}
	broker, err := brokerOf(l.results[0].OffsetMsgID)
	if err != nil {
		return "", err
	}
	again, _ := json.Marshal(l.again)
	child := exec.Command(os.Args[0], s.namesrv, topic, fmt.Sprint(s.count), broker, string(again))
	if said, err := child.CombinedOutput(); err != nil {
		return "", fmt.Errorf("first half: %w: %s", err, said)
	}
	if err = s.send(p, l, s.count/2, s.count); err != nil {
		return "", err
	}
	// started any earlier, the second would get half the queues and keep to that for longer than we wait
	if err = eventually("the first consumer has left", func() bool {
		ids, err := members(broker, topic+"-group")
		return err == nil && len(ids) == 0
	}); err != nil {
		return "", err
	}
	return "half and half", s.consume(l, "second", l.sent[s.count/2:], broker)
}

// consume what is new to the group and compare it with `wanted`; the group's offsets are at the queues' ends then.
func (s *session) consume(l *letters, instance string, wanted []*primitive.Message, broker string) error {
	box := &inbox{}
	c, err := s.push(l.topic+"-group", instance, l.topic, "*", box)
	if err != nil {
		return err
	}
	if err = eventually("all", func() bool { return l.distinct(box.all()) >= len(wanted) }); err != nil {
		queues := map[int]int{}
		for _, message := range box.all() {
			queues[message.Queue.QueueId]++
		}
		return fmt.Errorf("%w: messages by queue %v", err, queues)
	}
	if err = settled(broker, l.topic+"-group", l.topic, 4, c); err != nil {
		return err
	}
	if err = c.Shutdown(); err != nil {
		return err
	}
	return l.check(wanted, box.all(), false)
}

func pullPoll(s *session, topic string) (string, error) {
	_, l, err := s.started(topic, s.count)
	if err != nil {
		return "", err
	}
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(topic+"-group"),
		consumer.WithInstance(topic+"-group"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return "", err
	}
	if err = c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "green"}); err != nil {
		return "", err
	}
	if err = c.Start(); err != nil {
		return "", err
	}
	wanted := l.tagged("green")
	var received []*primitive.MessageExt
	for deadline := time.Now().Add(patience); l.distinct(received) < len(wanted) && time.Now().Before(deadline); {
		request, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		received = append(received, request.GetMsgList()...)
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	if err = c.Shutdown(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d messages", len(received), s.count), l.check(wanted, received, false)
}
