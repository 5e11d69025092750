package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const callTime = 60 * time.Second

// The client calls back for an asynchronous send without an answer, goes on to read the answer all the same, and ends the process
// by that, unless somebody handles panics: what the callback was told is the failure, and there is nothing else to do.
func init() {
	primitive.PanicHandler = func(panicked any) {
		fmt.Fprintln(os.Stderr, "panic inside the client:", panicked)
		os.Stderr.Write(debug.Stack())
	}
}

// patient says that its deadline is near, so that nobody adds a nearer one: the client gives a send three seconds by
// context.WithTimeout, which no setting changes, and what it gives up on a busy machine may be stored all the same.
type patient struct{ context.Context }

func (patient) Deadline() (time.Time, bool) { return time.Now().Add(time.Second), true }

// patiently: a context of a call that may take its time.
func patiently() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(callTime, cancel)
	return patient{ctx}
}
