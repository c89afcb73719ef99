package zones

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
)

// ordersEvery is the time between two records.
const ordersEvery = 20 * time.Millisecond

const ordersFlow = "Kafka to Pulsar"

// orderPartitions are those of the topics at both ends of Pigeonhole's route.
const orderPartitions = 2

// orders are records of Kafka, which Pigeonhole brings to Pulsar.
type orders struct {
	source, topic string

	mu           sync.Mutex
	sent         int
	acknowledged map[string]bool
	// mayRepeat are the records that Pigeonhole sends again in its second zone: the lost one had not
	// replicated them there. Others may have got them.
	mayRepeat map[string]bool
}

// newOrders makes the topics: in Kafka, and in the cluster of each zone.
func newOrders(w *fixture) *orders {
	w.t.Helper()
	for _, z := range w.zones {
		err := z.pulsar.Admin(w.t.Context(), http.MethodPut, "/admin/v2/persistent/"+ordersNamespace+"/orders/partitions", orderPartitions, nil)
		if !pulsaradmin.IsStatus(err, http.StatusConflict) { // the zone before may have made it here, too
			require.NoError(w.t, err)
		}
	}
	return &orders{source: w.kafka.Topic(w.t, orderPartitions), topic: "persistent://" + ordersNamespace + "/orders", acknowledged: map[string]bool{}}
}

// produce puts records into Kafka.
func (o *orders) produce(w *fixture) {
	producer, err := sarama.NewSyncProducer(w.kafka.Brokers(), kafka.Durable())
	if err != nil {
		w.t.Error(err)
		return
	}
	w.tick(ordersEvery, func(int) bool {
		o.mu.Lock()
		value := strconv.Itoa(o.sent)
		o.sent++
		o.mu.Unlock()
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: o.source, Key: sarama.StringEncoder(value), Value: sarama.StringEncoder(value)})
		if err != nil {
			w.t.Errorf("Kafka: %v", err)
			return false
		}
		o.mu.Lock()
		o.acknowledged[value] = true
		o.mu.Unlock()
		return true
	})
	if err := producer.Close(); err != nil {
		w.t.Error(err)
	}
}

// stored counts how often each record is in the cluster of a zone.
func (o *orders) stored(w *fixture, z *zone) map[string]int {
	w.t.Helper()
	return w.read(z, o.topic)
}

// read counts how often the cluster of a zone holds each message of a topic.
func (w *fixture) read(z *zone, topic string) map[string]int {
	w.t.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	cfg := messaging.ReaderConfig{Topic: topic, Name: "zones", PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10}
	require.NoError(w.t, pulsar.ReadStored(ctx, z.pulsar.URL(), cfg, func(d *messaging.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		counts[string(d.Payload)]++
		return nil
	}))
	return counts
}

// known are the records that Kafka has acknowledged so far.
func (o *orders) known() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.acknowledged)
}

// zoneIsLost is called when the zone of Pigeonhole is lost.
func (o *orders) zoneIsLost(w *fixture) {
	stored := o.stored(w, w.zones[second])
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mayRepeat = map[string]bool{}
	for i := range o.sent {
		if value := strconv.Itoa(i); stored[value] == 0 {
			o.mayRepeat[value] = true
		}
	}
}

// settle waits until each of the zones has all records but those from before its cluster.
func (o *orders) settle(w *fixture, zones []*zone) {
	w.t.Helper()
	for _, z := range zones {
		w.await(fmt.Sprintf("zone %s has all orders", z.name), func() bool { return o.countIn(w, z).missing == 0 })
	}
}

// countIn makes the line of a zone.
func (o *orders) countIn(w *fixture, z *zone) line {
	w.t.Helper()
	return o.count(z, o.stored(w, z), z != w.zones[second])
}

// count makes the line of a zone that stores those records. repeats: it may have some twice.
func (o *orders) count(z *zone, stored map[string]int, repeats bool) line {
	known := o.known()
	n := line{flow: ordersFlow, zone: z.name, acknowledged: len(known)}
	for value := range known {
		switch {
		case stored[value] > 0:
			n.received++
			n.doubled += stored[value] - 1
			may := 1
			if repeats && o.mayRepeat[value] {
				may = 2
			}
			n.tooOften += max(0, stored[value]-may)
		case z.beforeCluster[value]:
			n.lost++
		default:
			n.missing++
		}
	}
	return n
}
