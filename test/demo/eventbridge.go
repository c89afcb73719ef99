package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/test/demo/display"
)

// eventbridgeFlow shows events that are posted, matched by rules and delivered to a
// webhook on this machine. One rule's webhook fails once for each event, which is
// delivered again; another's refuses all, which become dead letters.
func eventbridgeFlow() flow {
	return flow{service: "eventbridge", binary: "eventbridge", servers: []string{"pulsar"}, start: startEventbridge}
}

type eventbridge struct {
	env     *environment
	service *service
	url     string // of the API
	hooks   *http.Server
	enough  chan struct{} // closed when nothing more is to be posted
	posted  chan struct{} // closed when nothing more is posted

	mu       sync.Mutex
	accepted map[string]int64           // events by type
	got      map[string]map[string]bool // ids by subscriber, delivered
	tried    map[string]map[string]bool // ids by subscriber, of any attempt
	retried  map[string]bool            // ids that came again after a failure
	orders   *ledger                    // of those that are for the subscriber called all
}

// The subscribers, and the type of event that each is for.
var hookOf = map[string]string{"all": "order.", "unsteady": "order.placed", "refusing": "order.canceled"}

var eventTypes = []string{"order.placed", "order.paid", "order.canceled", "stock.low"}

func startEventbridge(ctx context.Context, env *environment) (running, error) {
	e := &eventbridge{
		env: env, enough: make(chan struct{}), posted: make(chan struct{}), accepted: map[string]int64{},
		got: map[string]map[string]bool{}, tried: map[string]map[string]bool{}, retried: map[string]bool{}, orders: newLedger(1),
	}
	binary, err := env.binaries.path(ctx, "eventbridge")
	if err != nil {
		return e, err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return e, err
	}
	e.hooks = &http.Server{Handler: http.HandlerFunc(e.hook), ReadHeaderTimeout: patience}
	go func() { _ = e.hooks.Serve(ln) }()
	listen, err := env.ports.listen("eventbridge", 9601)
	if err != nil {
		return e, err
	}
	admin, err := env.ports.listen("eventbridge", 9602)
	if err != nil {
		return e, err
	}
	config := filepath.Join(env.dir, "eventbridge.yaml")
	// Webhooks on this machine are refused unless they are allowed.
	if err := os.WriteFile(config, []byte("targets:\n  allow: [127.0.0.0/8]\n"), 0o600); err != nil {
		return e, err
	}
	e.service, err = startService(env, "eventbridge", admin, binary, []string{
		"EVENTBRIDGE_HTTP_LISTEN=" + listen, "EVENTBRIDGE_ADMIN_LISTEN=" + admin,
		"EVENTBRIDGE_PULSAR_URL=" + env.servers["PULSAR_URL"], "EVENTBRIDGE_PULSAR_ADMIN_URL=" + env.servers["PULSAR_ADMIN_URL"],
	}, "-config.file", config)
	if err != nil {
		return e, err
	}
	if err := e.service.ready(ctx); err != nil {
		return e, err
	}
	e.url = "http://" + listen
	if err := e.define(ctx, "http://"+ln.Addr().String()); err != nil {
		return e, err
	}
	if err := env.curves.scrape("eventbridge", admin); err != nil {
		return e, err
	}
	env.screen.Address("eventbridge", "console", e.url+"/")
	env.screen.Address("eventbridge", "API", e.url+"/v1/buses/"+e.bus())
	env.screen.Address("eventbridge", "admin", "http://"+admin)
	env.screen.Note(`try  curl -i %s/v1/buses/%s/events -H 'Content-Type: application/cloudevents+json' -d '{"specversion":"1.0","id":"1","source":"/me","type":"order.placed","data":{}}'`,
		e.url, e.bus())
	return e, nil
}

func (e *eventbridge) bus() string { return "demo-" + e.env.run }

// define makes the bus and its subscribers.
func (e *eventbridge) define(ctx context.Context, hooks string) error {
	if err := e.call(ctx, http.MethodPut, "/v1/buses/"+e.bus(), map[string]any{"description": "made by the demo"}, nil); err != nil {
		return err
	}
	for name, prefix := range hookOf {
		subscriber := map[string]any{
			"rules":    []any{map[string]any{"name": "orders", "pattern": map[string]any{"type": []any{map[string]string{"prefix": prefix}}}}},
			"target":   map[string]any{"webhook": map[string]string{"url": hooks + "/" + name}},
			"delivery": map[string]any{"retry": map[string]any{"schedule": []string{"200ms"}, "max_attempts": 5}, "breaker": map[string]any{"failures": 0}},
		}
		path := "/v1/buses/" + e.bus() + "/subscribers/" + name
		if err := e.call(ctx, http.MethodPut, path, subscriber, nil); err != nil {
			return err
		}
		// Events count from when the engine matches by the new rules.
		err := e.service.await(ctx, "does not match by the rules of "+name, func(ctx context.Context) error {
			var status struct {
				Active bool `json:"active"`
			}
			if err := e.call(ctx, http.MethodGet, path+"/status", nil, &status); err != nil {
				return err
			}
			if !status.Active {
				return errors.New("not active yet")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// call makes a request of the API and reads its answer into out unless that is nil. For up to
// patience it makes the request again if the answer asks for that or the service has ended.
func (e *eventbridge) call(ctx context.Context, method, path string, in, out any) error {
	var status int
	var answer []byte
	var err error
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		run := e.service.run()
		status, answer, err = e.send(ctx, method, path, "application/json", in)
		again := err == nil && status == http.StatusServiceUnavailable || err != nil && ctx.Err() == nil && e.service.excused(waiting, run)
		if !again || !backoff.Sleep(waiting, sendAgainAfter) {
			break
		}
	}
	if err := errors.Join(ctx.Err(), err); err != nil {
		return err
	}
	if status/100 != 2 {
		return fmt.Errorf("%s %s: %d: %s", method, path, status, answer)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// send sends in as JSON unless it is nil.
func (e *eventbridge) send(ctx context.Context, method, path, mediaType string, in any) (status int, answer []byte, err error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", mediaType)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, answer, err
}

// hook is the webhook of all three subscribers.
func (e *eventbridge) hook(w http.ResponseWriter, r *http.Request) {
	var event struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&event); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	status := e.note(name, event.ID)
	w.WriteHeader(status)
	e.env.first.from("eventbridge")
	e.env.screen.Sample("eventbridge", func() string { return fmt.Sprintf("%s %s -> webhook %s: %d", event.Type, event.ID, name, status) })
}

// note remembers an attempt and returns its answer.
func (e *eventbridge) note(name, id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tried[name] == nil {
		e.tried[name], e.got[name] = map[string]bool{}, map[string]bool{}
	}
	if n, ok := e.number(id); ok && name == "all" {
		e.orders.arrive(n)
	}
	again := e.tried[name][id]
	e.tried[name][id] = true
	switch {
	case name == "refusing":
		return http.StatusUnprocessableEntity
	case name == "unsteady" && !again:
		return http.StatusInternalServerError
	case name == "unsteady":
		e.retried[id] = true
	}
	e.got[name][id] = true
	return http.StatusNoContent
}

// number is that of one of the demo's own events: who watches may send others.
func (e *eventbridge) number(id string) (int64, bool) {
	text, own := strings.CutPrefix(id, e.env.run+"-")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, own && err == nil
}

// watch posts events.
func (e *eventbridge) watch(ctx context.Context) error {
	e.env.screen.Status("eventbridge", e.figures)
	if err := e.post(ctx); err != nil {
		return err
	}
	close(e.posted)
	<-ctx.Done()
	return ctx.Err()
}

func (e *eventbridge) post(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-e.enough:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		kind := eventTypes[n%len(eventTypes)]
		event := map[string]any{
			"specversion": "1.0", "id": fmt.Sprintf("%s-%d", e.env.run, n), "source": "/demo/shop", "type": kind, "data": map[string]any{"order": n, "total": 3 * n},
		}
		began := time.Now()
		if err := e.publish(ctx, event); err != nil {
			return err
		}
		e.mu.Lock()
		e.accepted[kind]++
		if strings.HasPrefix(kind, hookOf["all"]) {
			e.orders.send(int64(n), began)
		} else {
			e.orders.skip(int64(n))
		}
		e.mu.Unlock()
	}
}

// publish sends an event until it is accepted, as a sender does that is told to send it again: the
// copies of one event count once.
func (e *eventbridge) publish(ctx context.Context, event map[string]any) error {
	for {
		run := e.service.run()
		status, answer, err := e.send(ctx, http.MethodPost, "/v1/buses/"+e.bus()+"/events", "application/cloudevents+json", event)
		switch {
		case err != nil && ctx.Err() == nil && e.service.excused(ctx, run):
			continue
		case err != nil:
			return err
		case status == http.StatusAccepted:
			return nil
		case status != http.StatusServiceUnavailable:
			return fmt.Errorf("an event was not accepted: %d: %s", status, answer)
		}
		e.env.screen.Note("eventbridge: %s", answer)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// figures are those of orders, which the subscriber called all gets.
func (e *eventbridge) figures() display.Figures {
	e.mu.Lock()
	defer e.mu.Unlock()
	missing, lag := e.orders.behind()
	return display.Figures{
		Unit: "orders", From: "POST", To: "a webhook", Sent: new(e.orders.sent), Arrived: e.orders.arrived,
		Missing: new(missing), Twice: new(e.orders.twice), Lag: lag,
		More: []string{
			fmt.Sprintf("unsteady took %d, %d at the second attempt", len(e.got["unsteady"]), len(e.retried)),
			fmt.Sprintf("refusing refused %d", len(e.tried["refusing"])),
		},
	}
}

// verify waits until all that was accepted is delivered or a dead letter.
func (e *eventbridge) verify(ctx context.Context) ([]display.Check, error) {
	close(e.enough)
	select {
	case <-e.posted:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		checks, err := e.compare(ctx)
		if err != nil {
			return nil, err
		}
		if allOK(checks) {
			return checks, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return checks, nil // which says what is missing
		}
	}
}

func allOK(checks []display.Check) bool {
	for _, c := range checks {
		if !c.OK() {
			return false
		}
	}
	return true
}

func (e *eventbridge) compare(ctx context.Context) ([]display.Check, error) {
	var status struct {
		Backlog *struct {
			DeadLetters int64 `json:"dead_letters"`
		} `json:"backlog"`
	}
	if err := e.call(ctx, http.MethodGet, "/v1/buses/"+e.bus()+"/subscribers/refusing/status", nil, &status); err != nil {
		return nil, err
	}
	letters := int64(-1)
	if status.Backlog != nil {
		letters = status.Backlog.DeadLetters
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	orders := e.accepted["order.placed"] + e.accepted["order.paid"] + e.accepted["order.canceled"]
	nothing := int64(0)
	if e.accepted["order.canceled"] == 0 {
		nothing = 1 // a smoke of nothing proves nothing
	}
	return []display.Check{
		{What: "orders accepted, delivered to the webhook", Want: orders, Got: int64(len(e.got["all"]))},
		{What: "placed, delivered at the second attempt", Want: e.accepted["order.placed"], Got: int64(len(e.retried))},
		{What: "canceled and refused, in dead letters", Want: e.accepted["order.canceled"], Got: letters},
		{What: "kinds of events that never came", Want: 0, Got: nothing},
	}, nil
}

func (e *eventbridge) stop(ctx context.Context) error {
	var errs []error
	if e.service != nil {
		errs = append(errs, e.service.stop(ctx))
	}
	if e.hooks != nil {
		errs = append(errs, e.hooks.Close())
	}
	return errors.Join(errs...)
}
