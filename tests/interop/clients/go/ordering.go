package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// A member of a group until its standard input ends:
//
//	interop ordering NAMESRV TOPIC GROUP ordered|broadcast
//
// It prints what Ordering.java prints: when a handler begins (B queue offset ms) and ends (E, or F for a failure).
func init() {
	if len(os.Args) == 6 && os.Args[1] == "ordering" {
		rlog.SetLogLevel("fatal")
		if err := ordering(os.Args[2], os.Args[3], os.Args[4], os.Args[5] == "ordered"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func ordering(namesrv, topic, group string, ordered bool) error {
	model := consumer.BroadCasting
	if ordered {
		model = consumer.Clustering
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("ordering-go-%d", os.Getpid())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(ordered),
	)
	if err != nil {
		return err
	}
	var mutex sync.Mutex
	failed := map[string]bool{}
	say := func(what string, message *primitive.MessageExt) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Println(what, message.Queue.QueueId, message.QueueOffset, time.Now().UnixMilli())
	}
	failsNow := func(message *primitive.MessageExt) bool {
		mutex.Lock()
		defer mutex.Unlock()
		place := fmt.Sprint(message.Queue.QueueId, message.QueueOffset)
		if message.QueueOffset%10 != 3 || failed[place] {
			return false
		}
		failed[place] = true
		return true
	}
	handle := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if !ordered {
				say("E", message)
				continue
			}
			say("B", message)
			time.Sleep(5 * time.Millisecond)
			if failsNow(message) {
				say("F", message)
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			say("E", message)
		}
		return consumer.ConsumeSuccess, nil
	}
	return live(c, topic, handle)
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// live: c consumes the topic, and says that it is ready, until the standard input ends.
func live(c rocketmq.PushConsumer, topic string, handle handler) error {
	if err := c.Subscribe(topic, consumer.MessageSelector{}, handle); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return c.Shutdown()
}
