package main

import (
	"context"
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
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(group+"-"+instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
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
	if err = eventually("first half", func() bool { return len(box.all()) >= s.count/2 }); err != nil {
		return "", err
	}
	if err = s.send(p, l, s.count/2, s.count); err != nil {
		return "", err
	}
	if err = eventually("second half", func() bool { return len(box.all()) >= s.count }); err != nil {
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
	if err = eventually("red and blue", func() bool { return len(box.all()) >= len(wanted) }); err != nil {
		return "", err
	}
	if err = c.Shutdown(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d messages", len(wanted), s.count), l.check(wanted, box.all(), false)
}

// pushTwoBalance: messages are sent until both consumers have had a share; every one arrives. While queues move from one
// consumer to the other a message may be seen twice (the giving side had not committed it), and only then.
func pushTwoBalance(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, s.count/2)
	if err != nil {
		return "", err
	}
	boxes := []*inbox{{}, {}}
	for i, box := range boxes {
		c, err := s.push(topic+"-group", string(rune('a'+i)), topic, "*", box)
		if err != nil {
			return "", err
		}
		defer c.Shutdown()
		if i == 0 {
			if err = eventually("first half", func() bool { return len(box.all()) >= s.count/2 }); err != nil {
				return "", err
			}
		}
	}
	sent := s.count / 2
	if err = eventually("a share for the second", func() bool {
		if sent < s.count-10 {
			err = s.send(p, l, sent, sent+1)
			sent++
			time.Sleep(20 * time.Millisecond)
		}
		return err != nil || len(boxes[1].all()) > 0
	}); err != nil {
		return "", err
	}
	if err = s.send(p, l, sent, s.count); err != nil {
		return "", err
	}
	distinct := map[int]*primitive.MessageExt{}
	if err = eventually("all", func() bool {
		for _, message := range append(boxes[0].all(), boxes[1].all()...) {
			distinct[number(&message.Message)] = message
		}
		return len(distinct) == s.count
	}); err != nil {
		return "", err
	}
	var all []*primitive.MessageExt
	for _, message := range distinct {
		all = append(all, message)
	}
	twice := len(boxes[0].all()) + len(boxes[1].all()) - s.count
	last := map[int]map[int]bool{0: {}, 1: {}}
	for i, box := range boxes {
		for _, message := range box.all() {
			if number(&message.Message) >= s.count-10 {
				last[i][message.Queue.QueueId] = true
			}
		}
	}
	for queue := range last[0] {
		if last[1][queue] {
			return "", fmt.Errorf("queue %d was consumed by both after balancing", queue)
		}
	}
	detail := fmt.Sprintf("%d and %d messages, %d twice", len(boxes[0].all()), len(boxes[1].all()), twice)
	return detail, l.check(l.sent, all, true)
}

// pushResume: the first half is consumed by a process of its own. (A consumer that was shut down in this process comes back:
// its client's rebalance connects again after Shutdown, and half the queues stay with that ghost.)
func pushResume(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, s.count/2)
	if err != nil {
		return "", err
	}
	child := exec.Command(os.Args[0], s.namesrv, topic, fmt.Sprint(s.count), "first-half")
	if said, err := child.CombinedOutput(); err != nil {
		return "", fmt.Errorf("first half: %w: %s", err, said)
	}
	if err = s.send(p, l, s.count/2, s.count); err != nil {
		return "", err
	}
	broker, err := brokerOf(l.results[0].OffsetMsgID)
	if err != nil {
		return "", err
	}
	// started any earlier, the second would get half the queues and keep to that for longer than we wait
	if err = eventually("the first consumer has left", func() bool {
		ids, err := members(broker, topic+"-group")
		return err == nil && len(ids) == 0
	}); err != nil {
		return "", err
	}
	return "half and half", s.consume(l, "second", l.sent[s.count/2:])
}

// consume what is new to the group and compare it with `wanted`.
func (s *session) consume(l *letters, instance string, wanted []*primitive.Message) error {
	box := &inbox{}
	c, err := s.push(l.topic+"-group", instance, l.topic, "*", box)
	if err != nil {
		return err
	}
	if err = eventually("all", func() bool { return len(box.all()) >= len(wanted) }); err != nil {
		queues := map[int]int{}
		for _, message := range box.all() {
			queues[message.Queue.QueueId]++
		}
		return fmt.Errorf("%w: messages by queue %v", err, queues)
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
	for deadline := time.Now().Add(patience); len(received) < len(wanted) && time.Now().Before(deadline); {
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
