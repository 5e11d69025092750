package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const requestTimeout = 60 * time.Second

// requestReply: requests and replies of this client with each other. The replier starts when the topic is there: made by the
// first request, which waits.
func requestReply(s *session, topic string) (string, error) {
	type outcome struct {
		detail string
		err    error
	}
	asked := make(chan outcome, 1)
	go func() {
		detail, err := s.ask(topic)
		asked <- outcome{detail, err}
	}()
	if os.Getenv(consumerUser) == "" { // else the topic is there: who asks for its queues does not sign
		if _, err := s.queues(topic); err != nil {
			return "", err
		}
	}
	var answered sync.Map
	if _, err := s.replier(topic, &answered); err != nil {
		return "", err
	}
	result := <-asked
	return result.detail, result.err
}

// asksAndAnswers is the program for somebody else's client: it asks on PREFIX-asks and answers on PREFIX-answers, which exist. It
// stays until its standard input ends: a reply wakes the one who asked before the broker is told that it has arrived.
func asksAndAnswers(s *session) bool {
	var answered sync.Map
	_, err := s.replier(s.prefix+"-answers", &answered)
	asks := run("asks", func(s *session, topic string) (string, error) { return s.ask(s.prefix + "-asks") }, s)
	answers := run("answers", func(s *session, topic string) (string, error) {
		if err != nil {
			return "", err
		}
		return "", eventually("all replies", func() bool { return size(&answered) >= s.count })
	}, s)
	for _, result := range []report{asks, answers} {
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return asks.OK && answers.OK
}

func size(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

func (s *session) replier(topic string, answered *sync.Map) (rocketmq.PushConsumer, error) {
	p, err := s.producer(topic+"-replies", producer.WithCredentials(credentials(consumerUser)))
	if err != nil {
		return nil, err
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(topic+"-repliers"),
		consumer.WithInstance(topic+"-replier"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials(consumerUser)),
	)
	if err != nil {
		return nil, err
	}
	err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, request := range messages {
			// this client asks before it has introduced itself to the broker, which then cannot find it
			err := eventually("a reply", func() bool {
				reply, err := consumer.CreateReplyMessage(request, answerTo(request.Body))
				if err != nil {
					return false
				}
				reply.Body = answerTo(request.Body) // it takes the body given for properties
				reply.WithProperty("n", request.GetProperty("n"))
				_, err = p.SendSync(patiently(), reply)
				return err == nil
			})
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			answered.Store(request.GetProperty("n"), true)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

// ask: the first half one by one, the second all at once.
func (s *session) ask(topic string) (string, error) {
	p, err := s.producer(topic + "-asker")
	if err != nil {
		return "", err
	}
	for n := 0; n < s.count/2; n++ {
		if err = askOne(p, topic, n); err != nil {
			return "", err
		}
	}
	failures := make(chan error, s.count)
	for n := s.count / 2; n < s.count; n++ {
		go func() { failures <- askOne(p, topic, n) }()
	}
	for n := s.count / 2; n < s.count; n++ {
		err = errors.Join(err, <-failures)
	}
	return fmt.Sprintf("%d requests", s.count), err
}

func askOne(p rocketmq.Producer, topic string, n int) error {
	times := 1
	if n%10 == 9 { // long enough to be compressed
		times = 500
	}
	request := primitive.NewMessage(topic, []byte(strings.Repeat(fmt.Sprintf("request %d é 漢字 ", n), times)))
	request.WithProperty("n", strconv.Itoa(n))
	body := append([]byte(nil), request.Body...) // this client compresses it in place
	reply, err := p.Request(patiently(), requestTimeout, request)
	if err != nil {
		return err
	}
	if !bytes.Equal(reply.Body, answerTo(body)) || number(reply) != n {
		return fmt.Errorf("reply to %d: %d bytes, properties %v", n, len(reply.Body), reply.GetProperties())
	}
	return nil
}

func answerTo(request []byte) []byte {
	return append([]byte("re:"), request...)
}
