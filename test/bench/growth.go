package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// growthSeconds is the length of one measured piece, growthRounds the turns of each size.
const (
	growthSeconds = 2.5
	growthRounds  = 2
	idleSeconds   = 10
	idleSize      = 1000
)

// growthRate is the load, in messages a second, under which the cost of a record is compared: a
// sender that sends as fast as it can makes large entries of a backlog, and so hides the cost.
const growthRate = 40_000

// growthKeys are the keys of the records: enough that each partition gets many.
const growthKeys = 10_007

// growth measures what the same load costs over more and more partitions, and topics, and what
// partitions cost while nothing is published.
func growth(ctx context.Context, r *report, b *broker) error {
	if !r.wants("growth_partitions") && !r.wants("growth_topics") && !r.wants("growth_idle") {
		return nil
	}
	r.row("part\tsize\tload\tours msg/s\tplain msg/s\tours CPU µs/msg\tplain\tours entries/s\tplain\tours peak MiB\tplain")
	if r.wants("growth_partitions") {
		for _, load := range []string{"steady", "full"} {
			cpu := map[int]float64{}
			for _, n := range []int{1, 4, 16, 64, 256} {
				ours, err := grow(ctx, r, b, load, "partitions", n)
				if err != nil {
					return err
				}
				cpu[n] = ours
			}
			r.atMost("growth_"+load+"_cpu_64_partitions_over_4", cpu[64]/cpu[4], 1.3)
			r.atMost("growth_"+load+"_cpu_256_partitions_over_4", cpu[256]/cpu[4], 1.6)
		}
	}
	if r.wants("growth_topics") {
		for _, n := range []int{1, 10, 100} {
			if _, err := grow(ctx, r, b, "steady", "topics", n); err != nil {
				return err
			}
		}
	}
	if r.wants("growth_idle") {
		return growthIdle(ctx, r, b)
	}
	return nil
}

// grow measures one size, ours and the plain client in turn, and returns our CPU time per record
// in microseconds.
func grow(ctx context.Context, r *report, b *broker, load, what string, n int) (float64, error) {
	type figures struct{ rate, cpu, entries, peak []float64 }
	var sides [2]figures
	rounds := min(r.rounds, growthRounds)
	for round := range rounds {
		for _, side := range [2]int{round % 2, 1 - round%2} {
			base := fresh("growth")
			p := piece{Kind: [2]string{"growth-ours", "growth-plain"}[side], URL: b.url, Topic: base, Payload: 200, Count: 1 << 40, Seconds: growthSeconds}
			if load == "steady" {
				p.Rate = growthRate
			}
			if what == "partitions" {
				p.Partitions = n
			} else {
				p.Topics = n
			}
			if r.profile != "" && round == 0 {
				p.Profile = r.profile + "/growth-" + load + "-" + what + "-" + strconv.Itoa(n) + "-" + p.Kind
			}
			if err := b.create(ctx, p); err != nil {
				return 0, err
			}
			o, err := runPiece(ctx, p)
			if err != nil {
				return 0, err
			}
			entries, err := b.entries(ctx, p)
			if err != nil {
				return 0, err
			}
			f := &sides[side]
			f.rate = append(f.rate, o.rate())
			f.cpu = append(f.cpu, o.CPU/float64(o.Messages)*1e6)
			// The warm-up's entries count, and so do its records.
			f.entries = append(f.entries, float64(entries)*o.rate()/float64(o.Messages+growthWarmUp))
			f.peak = append(f.peak, o.PeakMiB)
			if err := b.remove(ctx, p); err != nil {
				return 0, err
			}
		}
	}
	ours, plain := sides[0], sides[1]
	r.row("growth\t%d %s\t%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f", n, what, load, median(ours.rate), median(plain.rate),
		median(ours.cpu), median(plain.cpu), median(ours.entries), median(plain.entries), median(ours.peak), median(plain.peak))
	for name, f := range map[string]figures{"ours": ours, "plain": plain} {
		prefix := fmt.Sprintf("growth_%s_%d_%s_%s_", load, n, what, name)
		r.figure(prefix+"msg_s", median(f.rate))
		r.figure(prefix+"cpu_us", median(f.cpu))
		r.figure(prefix+"entries_s", median(f.entries))
		r.figure(prefix+"peak_mib", median(f.peak))
	}
	return median(ours.cpu), nil
}

// growthIdle measures publishers of many partitions that publish nothing.
func growthIdle(ctx context.Context, r *report, b *broker) error {
	var cores [2]float64
	var peak [2]float64
	for side, kind := range []string{"growth-idle-ours", "growth-idle-plain"} {
		p := piece{Kind: kind, URL: b.url, Topic: fresh("growth"), Payload: 200, Count: 1, Seconds: idleSeconds, Partitions: idleSize}
		if err := b.create(ctx, p); err != nil {
			return err
		}
		o, err := runPiece(ctx, p)
		if err != nil {
			return err
		}
		cores[side], peak[side] = o.CPU/o.Seconds, o.PeakMiB
		if err := b.remove(ctx, p); err != nil {
			return err
		}
	}
	r.row("growth idle\t%d partitions\tcores: %.4f\tplain: %.3f\tpeak MiB: %.0f\tplain: %.0f", idleSize, cores[0], cores[1], peak[0], peak[1])
	r.figure("growth_idle_plain_cores", cores[1])
	r.figure("growth_idle_ours_peak_mib", peak[0])
	r.figure("growth_idle_plain_peak_mib", peak[1])
	r.atMost("growth_idle_cores_1000_partitions", cores[0], .01)
	return nil
}

// topicsOf are the topics of a piece of growth.
func (p piece) topicsOf() []string {
	if p.Topics == 0 {
		return []string{p.Topic}
	}
	names := make([]string, p.Topics)
	for i := range names {
		names[i] = p.Topic + "-" + strconv.Itoa(i)
	}
	return names
}

func (b *broker) topicURL(topic string) string {
	return b.admin + "/admin/v2/" + strings.Replace(topic, "://", "/", 1)
}

// create makes the partitioned topic of p. Topics without partitions come with their publishers.
func (b *broker) create(ctx context.Context, p piece) error {
	if p.Partitions == 0 {
		return nil
	}
	return put(ctx, b.topicURL(p.Topic)+"/partitions", p.Partitions)
}

// remove deletes the topics of p, so that the broker is as empty for the next piece.
func (b *broker) remove(ctx context.Context, p piece) error {
	for _, topic := range p.topicsOf() {
		url := b.topicURL(topic)
		if p.Partitions > 0 {
			url += "/partitions"
		}
		if err := del(ctx, url+"?force=true"); err != nil {
			return err
		}
	}
	return nil
}

// entries counts the entries that p's topics hold.
func (b *broker) entries(ctx context.Context, p piece) (int, error) {
	type counted struct {
		Entries int `json:"entriesAddedCounter"`
	}
	n := 0
	for _, topic := range p.topicsOf() {
		if p.Partitions > 0 {
			var stats struct {
				Partitions map[string]counted `json:"partitions"`
			}
			if err := get(ctx, b.topicURL(topic)+"/partitioned-internalStats", &stats); err != nil {
				return 0, err
			}
			for _, c := range stats.Partitions {
				n += c.Entries
			}
			continue
		}
		var c counted
		if err := get(ctx, b.topicURL(topic)+"/internalStats", &c); err != nil {
			return 0, err
		}
		n += c.Entries
	}
	return n, nil
}

// growthWarmUp is how many records are published before a piece of growth is measured.
const growthWarmUp = 20_000

// load publishes record after record: a warm-up, then what is measured.
func (p piece) load(m *meter, send func(i int, key string), flush func() error, t *tally) error {
	keys := make([]string, growthKeys)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	for n := range growthWarmUp {
		send(n, keys[n%growthKeys])
	}
	if err := flush(); err != nil {
		return err
	}
	t.acked.Store(0)
	if err := m.start(); err != nil {
		return err
	}
	for n := 0; p.more(n, m.began); n++ {
		// In step with the clock every 20 records, half a millisecond at growthRate.
		if p.Rate > 0 && n%20 == 0 {
			due := m.began.Add(time.Duration(n) * time.Second / time.Duration(p.Rate))
			time.Sleep(time.Until(due))
		}
		send(n, keys[n%growthKeys])
	}
	if err := flush(); err != nil {
		return err
	}
	return t.stop(m)
}

func growthOurs(ctx context.Context, p piece, m *meter) error {
	client, err := library(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	var all []*messaging.Publisher
	for _, topic := range p.topicsOf() {
		publisher, err := client.Publisher(ctx, topic, messaging.Throughput())
		if err != nil {
			return err
		}
		all = append(all, publisher)
	}
	if strings.Contains(p.Kind, "idle") {
		return p.idle(ctx, m)
	}
	payload := body(p.Payload)
	var t tally
	done := func(_ messaging.MessageID, err error) { t.note(err) }
	return p.load(m, func(i int, key string) {
		all[i%len(all)].PublishAsync(ctx, &messaging.Record{Key: key, Payload: payload}, done)
	}, func() error {
		for _, publisher := range all {
			if err := publisher.Flush(ctx); err != nil {
				return err
			}
		}
		return nil
	}, &t)
}

func growthPlain(ctx context.Context, p piece, m *meter) error {
	client, err := rawClient(p)
	if err != nil {
		return err
	}
	defer client.Close()
	var all []pulsar.Producer
	for _, topic := range p.topicsOf() {
		o := opsOptions(topic)
		o.MaxPendingMessages = max(o.MaxPendingMessages/max(p.Partitions, 1), 1) // the same in all
		producer, err := client.CreateProducer(o)
		if err != nil {
			return err
		}
		all = append(all, producer)
	}
	if strings.Contains(p.Kind, "idle") {
		return p.idle(ctx, m)
	}
	payload := body(p.Payload)
	var t tally
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { t.note(err) }
	return p.load(m, func(i int, key string) {
		all[i%len(all)].SendAsync(ctx, &pulsar.ProducerMessage{Key: key, Payload: payload}, done)
	}, func() error {
		for _, producer := range all {
			if err := producer.FlushWithCtx(ctx); err != nil {
				return err
			}
		}
		return nil
	}, &t)
}

// idle measures a process that does nothing for a while.
func (p piece) idle(ctx context.Context, m *meter) error {
	debug.FreeOSMemory()
	if err := m.start(); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(p.Seconds * float64(time.Second))):
	case <-ctx.Done():
		return ctx.Err()
	}
	m.stop(1)
	return nil
}
