package messaging_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// A registry keeps the latest value of each key: it reads all there is, is ready then, and
// follows what changes.
func ExampleReader() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close(ctx) }()
	topic := exampleTopic("registry")
	changes, err := client.Publisher(ctx, topic, messaging.Business())
	if err != nil {
		log.Fatal(err)
	}
	err = changes.Publish(ctx,
		&messaging.Record{Key: "a", Payload: []byte("1")},
		&messaging.Record{Key: "b", Payload: []byte("1")},
		&messaging.Record{Key: "a", Payload: []byte("2")},
		&messaging.Record{Key: "b"}, // deletes it
	)
	if err != nil {
		log.Fatal(err)
	}

	r, err := client.Reader(ctx, messaging.ReaderConfig{
		Topic: topic, ReadCompacted: true, MaxMessageBytes: 64 << 10,
	})
	if err != nil {
		log.Fatal(err)
	}
	values := make(map[string]string)
	apply := func(_ context.Context, d *messaging.Delivery) error {
		if values[d.Key] = string(d.Payload); d.Payload == nil {
			delete(values, d.Key)
		}
		return nil
	}
	if _, err := r.ReadToEnd(ctx, apply); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", values)

	if err := changes.Publish(ctx, &messaging.Record{Key: "c", Payload: []byte("1")}); err != nil {
		log.Fatal(err)
	}
	d, err := r.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_ = apply(ctx, d)
	fmt.Println("later:", values)
	fmt.Println("closed:", r.Close(ctx) == nil)
	// Output:
	// ready: map[a:2]
	// later: map[a:2 c:1]
	// closed: true
}

// A replicator stores what a source numbers, each position once. Whoever opens the next writer
// learns from the topic itself where to go on.
func ExampleEntryWriter() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close(ctx) }()
	topic := exampleTopic("effects")

	for range 2 {
		w, err := client.EntryWriter(ctx, topic, messaging.EntryWriterConfig{
			Name: "replicator",
			Position: func(d *messaging.Delivery) (int64, error) {
				return strconv.ParseInt(d.Properties["position"], 10, 64)
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("stored up to", w.Stored())
		var records []*messaging.Record
		for position := w.Stored() + 1; len(records) < 3; position++ {
			records = append(records, &messaging.Record{
				Payload: []byte("effect"), SequenceID: &position,
				Properties: map[string]string{"position": strconv.FormatInt(position, 10)},
			})
		}
		if err := w.Store(ctx, records...); err != nil { // in doubt or lost: close it, open another
			log.Fatal(err)
		}
		fmt.Println("stored up to", w.Stored())
		if err := w.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// stored up to -1
	// stored up to 2
	// stored up to 2
	// stored up to 5
}
