package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/apache/rocketmq-client-go/v2"
)

const (
	delayLevels = 3
	maxRetries  = 2
)

// delaying is the program for a broker whose messageDelayLevel begins "1s 2s 3s 1s 1s". What becomes a dead letter is for the
// caller to read: topic %DLQ%PREFIX-send_back-group.
func delaying(s *session) bool {
	good := true
	for _, one := range []struct {
		name string
		work scenario
	}{{"delay_levels", delayedLetters}, {"send_back", sentBack}} {
		result := run(one.name, one.work, s)
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
		good = good && result.OK
	}
	return good
}

func (s *session) consumeDelayed(topic string, retries int32, handle func(*primitive.MessageExt), answer consumer.ConsumeResult) (rocketmq.PushConsumer, error) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(topic+"-group"),
		consumer.WithInstance(topic+"-consumer"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(retries),
	)
	if err != nil {
		return nil, err
	}
	err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			handle(message)
		}
		return answer, nil
	})
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

// delayedLetters: message n goes by level n mod 4, of which 0 is none; each comes once, as it was sent, and not before its time.
func delayedLetters(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	ids := map[int]string{}
	for n, message := range l.sent {
		if n%(delayLevels+1) != 0 {
			message.WithDelayTimeLevel(n % (delayLevels + 1))
		}
		result, err := p.SendSync(patiently(), message)
		if err != nil {
			return "", err
		}
		ids[n] = result.MsgID
	}
	var mutex sync.Mutex
	var received []*primitive.MessageExt
	earliest := int64(math.MaxInt64)
	c, err := s.consumeDelayed(topic, -1, func(message *primitive.MessageExt) {
		mutex.Lock()
		defer mutex.Unlock()
		level, _ := strconv.Atoi(message.GetProperty("DELAY"))
		earliest = min(earliest, time.Now().UnixMilli()-message.BornTimestamp-1000*int64(level))
		received = append(received, message)
	}, consumer.ConsumeSuccess)
	if err != nil {
		return "", err
	}
	defer c.Shutdown()
	count := func() int {
		mutex.Lock()
		defer mutex.Unlock()
		return len(received)
	}
	if err = eventually("all of "+topic, func() bool { return count() >= s.count }); err != nil {
		return "", err
	}
	mutex.Lock()
	defer mutex.Unlock()
	if earliest < 0 {
		return "", fmt.Errorf("early by %d ms", -earliest)
	}
	for _, message := range received {
		n := number(&message.Message)
		wanted := l.sent[n]
		if ids[n] == "" {
			return "", fmt.Errorf("message %d came twice", n)
		}
		if message.MsgId != ids[n] || !bytes.Equal(message.Body, wanted.Body) {
			return "", fmt.Errorf("message %d has another id or body: %s, %s sent", n, message.MsgId, ids[n])
		}
		ids[n] = ""
		for _, name := range []string{"TAGS", "KEYS", "n", "text", "DELAY"} {
			if message.GetProperty(name) != wanted.GetProperty(name) {
				return "", fmt.Errorf("%s of %d is %q, %q sent", name, n, message.GetProperty(name), wanted.GetProperty(name))
			}
		}
	}
	return fmt.Sprintf("%d messages, the earliest %d ms after its time", len(received), earliest), nil
}

// sentBack: every delivery is refused; each message comes three times, with its id and topic, a level later each time.
func sentBack(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	count := s.count / 10
	l := newLetters(topic, count)
	ids := map[int]string{}
	broker := ""
	for n, message := range l.sent {
		result, err := p.SendSync(patiently(), message)
		if err != nil {
			return "", err
		}
		ids[n] = result.MsgID
		if broker, err = brokerOf(result.OffsetMsgID); err != nil {
			return "", err
		}
	}
	var mutex sync.Mutex
	seen := map[string]bool{}
	wrong := ""
	c, err := s.consumeDelayed(topic, maxRetries, func(message *primitive.MessageExt) {
		mutex.Lock()
		defer mutex.Unlock()
		n := number(&message.Message)
		seen[fmt.Sprint(n, " ", message.ReconsumeTimes)] = true
		if message.Topic != topic || message.MsgId != ids[n] {
			wrong = fmt.Sprint("topic ", message.Topic, " id ", message.MsgId, ", sent ", ids[n])
		}
	}, consumer.ConsumeRetryLater)
	if err != nil {
		return "", err
	}
	defer c.Shutdown()
	attempts := func() int {
		mutex.Lock()
		defer mutex.Unlock()
		return len(seen)
	}
	if err = eventually("every attempt of "+topic, func() bool { return attempts() >= count*(maxRetries+1) }); err != nil {
		return "", err
	}
	if err = settled(broker, topic+"-group", "%RETRY%"+topic+"-group", 1, c); err != nil {
		return "", err // the last ones are not sent back
	}
	if attempts() != count*(maxRetries+1) || wrong != "" {
		return "", fmt.Errorf("%d attempts, %s", attempts(), wrong)
	}
	return fmt.Sprintf("%d messages, %d times each", count, maxRetries+1), nil
}
