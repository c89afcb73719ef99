//go:build !race

package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// wireModel runs a seed on the in-process server.
type wireModel struct {
	plan   modelPlan
	s      *fakebroker.Server
	faults []*fakebroker.Fault // to be removed

	// At the end.
	dispatches []fakebroker.Dispatch
	holders    map[string]map[string]bool // by entry
}

const modelTopic = "persistent://public/default/model"

func newWireModel(p modelPlan) (modelServer, error) {
	s, err := fakebroker.Listen(fakebroker.WithDispatchLog())
	if err != nil {
		return nil, err
	}
	s.CreateTopic(modelTopic, p.partitions)
	return &wireModel{plan: p, s: s}, nil
}

func (w *wireModel) config(identity string) messaging.Config {
	return messaging.Config{
		URL: w.s.URL(), OperationTimeout: modelTimeout, Auth: messaging.Auth{Token: secret.String(identity)},
	}
}

func (w *wireModel) topic() string { return modelTopic }

func (w *wireModel) partition(i int) string {
	if w.plan.partitions == 0 {
		return modelTopic
	}
	return fmt.Sprintf("%s-partition-%d", modelTopic, i%w.plan.partitions)
}

func (w *wireModel) publish(partition int, batch []modelRecord) {
	messages := make([]fakebroker.Message, 0, len(batch))
	for _, r := range batch {
		messages = append(messages, fakebroker.Message{Key: r.key, OrderingKey: r.ordering, Payload: []byte(r.payload)})
	}
	if len(batch) == 1 {
		w.s.Publish(w.partition(partition), messages[0])
		return
	}
	w.s.PublishBatch(w.partition(partition), fakebroker.None, messages...)
}

func (w *wireModel) subscribed(ctx context.Context) error {
	return w.s.Until(ctx, func() bool { return len(w.s.Consumers(modelTopic, "sub")) >= max(w.plan.partitions, 1) })
}

func (w *wireModel) backlog() int {
	return w.s.Backlog(modelTopic, "sub") + w.s.Backlog(modelTopic+"-sub-RETRY", "sub")
}

func (w *wireModel) until(ctx context.Context, cond func() bool) error { return w.s.Until(ctx, cond) }

func (w *wireModel) clock() int { return w.s.Clock() }

// strike makes a fault. What it leaves behind is ended by heal.
func (w *wireModel) strike(m *modelRun, f faultPlan) {
	s := w.s
	wait := func() { time.Sleep(f.last) }
	switch f.kind {
	case faultCut:
		s.CutConnections()
	case faultCutOne:
		names := []string{"c0", "c1", "p0", "p1", "e0", "e1"}
		s.CutConnectionsOf(names[f.n%len(names)])
	case faultLoseAcks:
		s.LoseAcks(modelTopic)
		wait()
		if f.n%2 == 0 {
			s.CloseConsumers(modelTopic)
		} else {
			s.CutConnections()
		}
	case faultStall:
		s.Stall()
		wait()
		s.Resume()
	case faultRefuse:
		s.RefuseConnections(true)
		s.CutConnections()
		wait()
		s.RefuseConnections(false)
	case faultCloseConsumers:
		s.CloseConsumers(modelTopic)
	case faultEndSessions:
		code := []fakebroker.ServerError{fakebroker.ConsumerBusy, fakebroker.AuthorizationError, fakebroker.TopicNotFound}[f.n%3]
		w.faults = append(w.faults, s.FailSubscribe(modelTopic, code, f.n))
		s.CloseConsumers(modelTopic)
	case faultCloseProducers:
		s.CloseProducers(modelTopic)
	case faultLoseReceipts:
		lost := s.DropReceipts(modelTopic, 1+f.n)
		wait()
		lost.Remove()
		if f.n > 0 { // otherwise AckTimeout finds out
			s.CloseProducers(modelTopic)
		}
	case faultLoseEntries:
		hold := s.HoldEntries(modelTopic)
		wait()
		s.CutConnections()
		hold.Remove()
		hold.Forget()
	case faultHoldEntries, faultHoldReceipts:
		hold := s.HoldEntries
		if f.kind == faultHoldReceipts {
			hold = s.HoldReceipts
		}
		h := hold(modelTopic)
		wait()
		h.Release()
	case faultSlow:
		slow := s.SlowPartition(w.partition(f.n), time.Duration(f.n)*time.Millisecond)
		wait()
		slow.Remove()
	case faultSendError:
		// A broker that could not store an entry stores none of those behind it before it has
		// closed their producers.
		fail := s.FailSend(modelTopic, fakebroker.PersistenceError, fakebroker.Always)
		wait()
		s.CloseProducers(modelTopic)
		fail.Remove()
	case faultTwice:
		w.faults = append(w.faults, s.DuplicateDispatch(modelTopic, f.n))
	case faultChangeActive:
		s.ChangeActive(modelTopic, "sub")
	case faultFence:
		s.Fence(modelTopic, fakebroker.Message{Payload: []byte(m.nextFence() + "|0|")})
	case faultTakeover:
		s.Isolate("e0")
		select {
		case <-m.opened["e1"]:
		case <-time.After(3 * time.Second):
		}
		wait()
		s.Admit("e0")
	}
}

func (w *wireModel) heal() {
	for _, f := range w.faults {
		f.Remove()
	}
}

func (w *wireModel) log() ([]modelMessage, error) {
	w.dispatches = w.s.Dispatches()
	var out []modelMessage
	for _, e := range w.s.Entries(modelTopic) {
		out = append(out, modelMessage{
			modelRecord: modelRecord{key: e.Key, ordering: e.OrderingKey, payload: string(e.Payload)},
			id:          fmt.Sprintf("%d:%d:%d:%d", e.Ledger, e.Entry, max(e.Partition, 0), max(e.BatchIndex, 0)),
			partition:   e.Topic[strings.LastIndex(e.Topic, "/")+1:],
		})
	}
	return out, nil
}

func (w *wireModel) deadLetters() (map[string]bool, error) {
	out := make(map[string]bool)
	for _, e := range w.s.Entries(modelTopic + "-sub-DLQ") {
		out[string(e.Payload)] = true
	}
	return out, nil
}

// lapsed reports whether another client was sent the message after this one had it and before its
// handler ended, even if this client has it again by then: what the handler did counts for the
// first time that it had it. On Key_Shared subscriptions keys change hands, else partitions.
func (w *wireModel) lapsed(c *call) bool {
	if w.plan.consumers < 2 || w.plan.consumer.Type == messaging.Shared {
		return false
	}
	var ledger, entry uint64
	if _, err := fmt.Sscanf(c.ID, "%d:%d:", &ledger, &entry); err != nil {
		return false
	}
	end := c.ended
	if c.End == 0 {
		end = len(w.dispatches)
	}
	for i := end - 1; i >= 0; i-- {
		switch d := w.dispatches[i]; {
		case d.Topic != c.topic:
		case i < c.began && d.Identity == c.identity && d.Entry == entry:
			return false
		case d.Identity != c.identity && (w.plan.consumer.Type != messaging.KeyShared || d.Key == c.key):
			return true
		}
	}
	return true
}

func (w *wireModel) moved(l modelMessage) bool {
	if w.holders == nil {
		w.holders = make(map[string]map[string]bool)
		for _, d := range w.dispatches {
			entry := fmt.Sprintf("%s:%d", d.Topic[strings.LastIndex(d.Topic, "/")+1:], d.Entry)
			if w.holders[entry] == nil {
				w.holders[entry] = make(map[string]bool)
			}
			w.holders[entry][d.Identity] = true
		}
	}
	var ledger, entry uint64
	_, err := fmt.Sscanf(l.id, "%d:%d:", &ledger, &entry)
	return err != nil || len(w.holders[fmt.Sprintf("%s:%d", l.partition, entry)]) > 1
}

// trace lists what was sent to whom, and when by the server's clock.
func (w *wireModel) trace() []string {
	sent := make(map[string][]string)
	for i, d := range w.dispatches {
		sent[d.Topic+" to "+d.Identity] = append(sent[d.Topic+" to "+d.Identity], fmt.Sprintf("%d:%d", i, d.Entry))
	}
	var out []string
	for to, list := range sent {
		out = append(out, "dispatched (clock:entry) from "+to+" "+strings.Join(list, " "))
	}
	return out
}

func (w *wireModel) connected() []string {
	var out []string
	for _, c := range w.s.Consumers("", "sub") {
		out = append(out, fmt.Sprintf("connected: %+v", c))
	}
	return out
}

func (w *wireModel) close() error {
	err := w.s.Close()
	if problems := w.s.Problems(); len(problems) > 0 {
		err = errors.Join(err, errors.New(strings.Join(problems, "; ")))
	}
	return err
}
