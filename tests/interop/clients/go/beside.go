package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// What Beside.java is:
//
//	interop beside NAMESRV TOPIC GROUP
func init() {
	if len(os.Args) == 5 && os.Args[1] == "beside" {
		rlog.SetLogLevel("fatal")
		if err := beside(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func beside(namesrv, topic, group string) error {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("beside-go-%d", os.Getpid())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(1),
	)
	if err != nil {
		return err
	}
	var mutex sync.Mutex
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		message := messages[0]
		fails, _ := strconv.Atoi(message.GetProperty("fails"))
		bad, word := int(message.ReconsumeTimes) < fails, "ok"
		if bad {
			word = "failed"
		}
		mutex.Lock()
		fmt.Println(message.GetProperty("n"), message.ReconsumeTimes, message.Queue.QueueId, message.Topic, word)
		mutex.Unlock()
		if bad {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	return live(c, topic, handle)
}
