package main

import (
	"context"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// readTopic calls handle with every message of a topic, from its beginning, until
// ctx ends.
func readTopic(ctx context.Context, url, topic string, handle func(key string, payload []byte)) error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url})
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", topic, err)
	}
	defer client.Close()
	r, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", topic, err)
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		handle(m.Key(), m.Payload())
	}
}
