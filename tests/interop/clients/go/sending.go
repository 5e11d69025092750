package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func (s *session) producer(topic string, options ...producer.Option) (rocketmq.Producer, error) {
	options = append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		producer.WithGroupName(topic + "-producer"),
		producer.WithInstanceName(topic + "-producer"),
		producer.WithCredentials(credentials(producerUser)),
		producer.WithRetry(0), // its own retries would hide that a message may be there twice
	}, options...)
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func (s *session) send(p rocketmq.Producer, l *letters, from, to int) error {
	for _, message := range l.sent[from:to] {
		if _, err := s.sendOne(p, l, message); err != nil {
			return err
		}
	}
	return nil
}

// sendOne sends a letter until it is acknowledged.
func (s *session) sendOne(p rocketmq.Producer, l *letters, message *primitive.Message) (*primitive.SendResult, error) {
	for {
		message.Topic = l.topic // a producer with a namespace writes that into the message
		result, err := p.SendSync(patiently(), message)
		if err == nil {
			return result, l.acknowledged(message, result)
		}
		if err = l.failed(err, message); err != nil {
			return nil, err
		}
	}
}

// readAll pulls every queue of the letters' topic from offset 0, one held pull per queue, until all letters came; then the
// queues' ends must add up to just their number.
func (s *session) readAll(l *letters) ([]*primitive.MessageExt, error) {
	queues, err := s.queues(l.topic)
	if err != nil {
		return nil, err
	}
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(l.topic+"-reader"),
		consumer.WithInstance(l.topic+"-reader"),
	)
	if err != nil {
		return nil, err
	}
	if err = reader.Subscribe(l.topic, consumer.MessageSelector{}); err != nil {
		return nil, err
	}
	if err = reader.Start(); err != nil {
		return nil, err
	}
	type arrival struct {
		queue  int
		result *primitive.PullResult
		err    error
	}
	arrivals := make(chan arrival, 1000)
	for _, queue := range queues {
		go func() {
			for offset := int64(0); ; {
				result, err := reader.PullFrom(context.Background(), queue, offset, 32)
				arrivals <- arrival{queue.QueueId, result, err}
				if err == nil {
					offset = result.NextBeginOffset
				} else {
					time.Sleep(100 * time.Millisecond)
				}
			}
		}()
	}
	var all []*primitive.MessageExt
	ends := map[int]int64{}
	for timeout := time.After(patience); l.distinct(all) < len(l.sent); {
		select {
		case a := <-arrivals:
			if a.err != nil {
				err = a.err
				continue
			}
			all = append(all, a.result.GetMessageExts()...)
			ends[a.queue] = a.result.MaxOffset
		case <-timeout:
			return nil, fmt.Errorf("%s: %d of %d messages after %v, last error %v", l.topic, l.distinct(all), len(l.sent), patience, err)
		}
	}
	total := 0
	for _, end := range ends {
		total += int(end)
	}
	if total < len(l.sent) || total > len(l.sent) && len(l.again) == 0 {
		return nil, fmt.Errorf("%s: queues end at %v, wanted %d messages", l.topic, ends, len(l.sent))
	}
	return all, nil
}

// queues of a topic, asked again while the name server does not answer or does not know it yet.
func (s *session) queues(topic string) (queues []*primitive.MessageQueue, err error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.namesrv})))
	if err != nil {
		return nil, err
	}
	if late := eventually("route of "+topic, func() bool {
		queues, err = a.FetchPublishMessageQueues(patiently(), topic)
		return err == nil
	}); late != nil {
		return nil, fmt.Errorf("%w: %v", late, err)
	}
	return queues, nil
}

func (s *session) compare(l *letters) (string, error) {
	received, err := s.readAll(l)
	if err != nil {
		return "", err
	}
	s.remember(l)
	detail := fmt.Sprintf("%d messages", len(received))
	if l.failures > 0 {
		detail += fmt.Sprintf(", %d sends made again", l.failures)
	}
	return detail, l.check(l.sent, received, true)
}

func sendSync(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	if err = s.send(p, l, 0, s.count); err != nil {
		return "", err
	}
	return s.compare(l)
}

func sendAsync(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	done := make(chan error, s.count)
	for _, message := range l.sent {
		var told sync.Once // the client calls back twice for a send that failed
		err = p.SendAsync(patiently(), func(_ context.Context, result *primitive.SendResult, err error) {
			told.Do(func() {
				if err == nil {
					err = l.acknowledged(message, result)
				} else {
					err = l.failed(err, message)
				}
				done <- err
			})
		}, message)
		if err != nil {
			return "", err
		}
	}
	for range l.sent {
		if err = <-done; err != nil {
			return "", err
		}
	}
	for _, message := range l.sent {
		if l.results[number(message)] == nil {
			if _, err = s.sendOne(p, l, message); err != nil {
				return "", err
			}
		}
	}
	return s.compare(l)
}

func sendOneway(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	if err = s.send(p, l, 0, 1); err != nil { // so that the topic has a route to read by
		return "", err
	}
	for _, message := range l.sent[1:] {
		if err = p.SendOneWay(patiently(), message); err != nil {
			return "", err
		}
	}
	return s.compare(l)
}

func sendBatch(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	for from := 0; from < s.count; from += 16 {
		part := l.sent[from:min(from+16, s.count)]
		result, err := p.SendSync(patiently(), part...)
		for ; err != nil; result, err = p.SendSync(patiently(), part...) {
			if err = l.failed(err, part...); err != nil {
				return "", err
			}
		}
		if result.Status != primitive.SendOK {
			return "", fmt.Errorf("batch: %v", result.Status)
		}
	}
	return s.compare(l)
}

func sendToQueue(s *session, topic string) (string, error) {
	p, err := s.producer(topic, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return "", err
	}
	l, queues, err := s.begun(topic)
	if err != nil {
		return "", err
	}
	for i, message := range l.sent[1:] {
		message.Queue = queues[i%3]
		result, err := s.sendOne(p, l, message)
		if err != nil {
			return "", err
		}
		if result.MessageQueue.QueueId != message.Queue.QueueId {
			return "", fmt.Errorf("sent to %v, wanted %v", result.MessageQueue, message.Queue)
		}
	}
	return s.compare(l)
}

// begun: letters of which the first was sent, so that the topic is there with its four queues.
func (s *session) begun(topic string) (*letters, []*primitive.MessageQueue, error) {
	first, err := s.producer(topic + "-first")
	if err != nil {
		return nil, nil, err
	}
	l := newLetters(topic, s.count)
	if err = s.send(first, l, 0, 1); err != nil {
		return nil, nil, err
	}
	queues, err := s.queues(topic)
	if err == nil && len(queues) != 4 {
		err = fmt.Errorf("%d queues", len(queues))
	}
	return l, queues, err
}

func sendLarge(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, 0)
	l.add([]byte(strings.Repeat("compressible ", 500)))
	l.add([]byte(strings.Repeat("compressible ", 80_000)))
	l.add(noise(5_000, 1))
	l.add(noise(1<<20, 2))
	l.add(noise(3<<20, 3))
	l.add([]byte{0})
	if err = s.send(p, l, 0, len(l.sent)); err != nil {
		return "", err
	}
	return s.compare(l)
}

// sendSigned: AccessKey and Signature beside the fields of each request, ignored by a broker without access control.
func sendSigned(s *session, topic string) (string, error) {
	p, err := s.producer(topic, producer.WithCredentials(primitive.Credentials{AccessKey: "nobody", SecretKey: "nothing"}))
	if err != nil {
		return "", err
	}
	l := newLetters(topic, 8)
	if err = s.send(p, l, 0, 8); err != nil {
		return "", err
	}
	return s.compare(l)
}

func adminTopic(s *session, topic string) (string, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.namesrv})))
	if err != nil {
		return "", err
	}
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	first := newLetters(topic+"-address", 1)
	if err = s.send(p, first, 0, 1); err != nil {
		return "", err
	}
	received, err := s.readAll(first) // the Go client tells a broker's address nowhere but in what it receives
	if err != nil {
		return "", err
	}
	broker := received[0].StoreHost
	if late := eventually("the topic is created", func() bool {
		err = a.CreateTopic(patiently(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker),
			admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3))
		return err == nil
	}); late != nil {
		return "", fmt.Errorf("%w: %v", late, err)
	}
	queues, err := s.queues(topic)
	if err != nil {
		return "", err
	}
	if len(queues) != 3 {
		return "", fmt.Errorf("%d queues", len(queues))
	}
	if err = eventually("the topic in the list", func() bool {
		list, err := a.FetchAllTopicList(patiently())
		return err == nil && slices.Contains(list.TopicList, topic)
	}); err != nil {
		return "", err
	}
	l := newLetters(topic, 9)
	if err = s.send(p, l, 0, 9); err != nil {
		return "", err
	}
	return s.compare(l)
}
