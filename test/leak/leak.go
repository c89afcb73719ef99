// Package leak makes a test binary fail when its tests leave goroutines behind.
package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"

	"github.com/aviaryhq/aviary/test/await"
)

// Main calls run, which is the Run of a [testing.M], and exits: with 1 if a goroutine is left that is
// neither a known leak of a library nor among ignored. Goroutines may take a while to end after the
// last test: sarama's breakers sleep for ten seconds.
func Main(run func() int, ignored ...goleak.Option) {
	code := run()
	options := append(known(), ignored...)
	for deadline := time.Now().Add(await.Patience); code == 0; {
		err := goleak.Find(options...)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// known are the leaks of libraries that no code of ours can end.
func known() []goleak.Option {
	const (
		client    = "github.com/apache/pulsar-client-go/pulsar"
		toxiproxy = "github.com/Shopify/toxiproxy/v2"
	)
	return []goleak.Option{
		// A producer that the broker closes for good leaves its reconnect loop behind in
		// pulsar-client-go v0.21.0: doClose does not cancel the context that the loop waits
		// for, and Close then returns early (TestClientFencedProducerLeaksAGoroutine).
		goleak.IgnoreTopFunction(client + ".(*partitionProducer).runEventsLoop.func1"),
		// A Subscribe that hangs for good (TestClientSubscribeHangs).
		goleak.IgnoreAnyFunction(client + ".(*consumer).internalTopicSubscribeToPartitions"),
		goleak.IgnoreAnyFunction(client + ".(*partitionConsumer).clearQueueAndGetNextMessage"),
		goleak.IgnoreTopFunction(client + ".(*negativeAcksTracker).track"),
		// The client checks a chunked message again after a minute, even if it is complete or the
		// consumer is closed.
		goleak.IgnoreTopFunction(client + ".(*chunkedMsgCtxMap).discardChunkIfExpire"),
		// A connection that closes reports this to a cancelled request. Nobody receives the report,
		// so the goroutine blocks.
		goleak.IgnoreTopFunction(client + "/internal.(*rpcClient).RequestOnCnx.func1"),
		// A lookup that was given up: the client tries it again until its operation timeout.
		goleak.IgnoreAnyFunction(client + "/internal.(*rpcClient).requestToHost"),
		// A closed producer's check of its send timeout, which wakes up once more.
		goleak.IgnoreTopFunction(client + ".(*partitionProducer).failTimeoutMessages"),
		// A producer that was closed while it connects anew, and whose broker never answers.
		goleak.IgnoreAnyFunction(client + ".(*partitionProducer).reconnectToBroker"),
		// The links of a proxy that was cut while data was in them: each stage waits for a
		// next one that is gone.
		goleak.IgnoreAnyFunction(toxiproxy + ".(*ToxicLink).read"),
		goleak.IgnoreAnyFunction(toxiproxy + ".(*ToxicLink).write"),
		goleak.IgnoreAnyFunction(toxiproxy + "/toxics.(*ToxicStub).Run"),
	}
}
