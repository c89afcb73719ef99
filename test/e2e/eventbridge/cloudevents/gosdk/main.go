// Command gosdk sends and receives events with sdk-go. The documentation of package cloudevents has
// its arguments, input and output.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/cloudevents/sdk-go/v2/types"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gosdk:", err)
		os.Exit(1)
	}
}

type plainEvent struct {
	Attributes map[string]any `json:"attributes"`
	Data       []byte         `json:"data"`
}

type request struct {
	Mode   string       `json:"mode"`
	Events []plainEvent `json:"events"`
}

type printer struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (p *printer) print(line map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(line)
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want URL")
	}
	p := &printer{out: json.NewEncoder(os.Stdout)}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(p.receive), ReadHeaderTimeout: time.Minute}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(listener) }()
	p.print(map[string]any{"listening": listener.Addr().String()})
	for in := json.NewDecoder(os.Stdin); ; {
		var r request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		p.print(send(ctx, args[0], r))
	}
}

func (p *printer) receive(w http.ResponseWriter, r *http.Request) {
	line := map[string]any{"path": r.URL.Path, "events": []plainEvent{}}
	events, err := read(r)
	if err == nil {
		plain := make([]plainEvent, len(events))
		for i, e := range events {
			plain[i] = describe(e)
		}
		line["events"] = plain
	} else {
		line["error"] = err.Error()
	}
	p.print(line)
	w.WriteHeader(http.StatusNoContent)
}

func read(r *http.Request) ([]event.Event, error) {
	if cehttp.IsHTTPBatch(r.Header) {
		return cehttp.NewEventsFromHTTPRequest(r)
	}
	e, err := cehttp.NewEventFromHTTPRequest(r)
	if err != nil {
		return nil, err
	}
	return []event.Event{*e}, e.Validate()
}

func describe(e event.Event) plainEvent {
	attributes := map[string]any{"specversion": e.SpecVersion(), "id": e.ID(), "source": e.Source(), "type": e.Type()}
	for name, value := range map[string]string{"subject": e.Subject(), "dataschema": e.DataSchema(), "datacontenttype": e.DataContentType()} {
		if value != "" {
			attributes[name] = value
		}
	}
	if !e.Time().IsZero() {
		attributes["time"] = types.FormatTime(e.Time())
	}
	for name, value := range e.Extensions() {
		attributes[name] = value
	}
	return plainEvent{attributes, e.Data()}
}

func send(ctx context.Context, to string, r request) map[string]any {
	var ids []string
	var events []event.Event
	for _, plain := range r.Events {
		e, err := build(plain)
		if err != nil {
			return map[string]any{"sent": ids, "answer": err.Error()}
		}
		ids, events = append(ids, e.ID()), append(events, e)
	}
	status, answer, err := post(ctx, to, r.Mode, events)
	if err != nil {
		answer = err.Error()
	}
	return map[string]any{"sent": ids, "status": status, "answer": answer}
}

func build(plain plainEvent) (event.Event, error) {
	e := event.New()
	for name, value := range plain.Attributes {
		text, _ := value.(string)
		switch name {
		case "specversion", "datacontenttype":
		case "id":
			e.SetID(text)
		case "source":
			e.SetSource(text)
		case "type":
			e.SetType(text)
		case "subject":
			e.SetSubject(text)
		case "dataschema":
			e.SetDataSchema(text)
		case "time":
			at, err := types.ParseTime(text)
			if err != nil {
				return e, err
			}
			e.SetTime(at)
		case "link": // the extension of the type URI
			link, err := url.Parse(text)
			if err != nil {
				return e, err
			}
			e.SetExtension(name, types.URI{URL: *link})
		default:
			if number, ok := value.(float64); ok {
				value = int32(number)
			}
			e.SetExtension(name, value)
		}
	}
	if plain.Data == nil {
		return e, nil
	}
	contentType, _ := plain.Attributes["datacontenttype"].(string)
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return e, err
	}
	var data any = plain.Data
	switch {
	case media == event.ApplicationJSON:
		data = json.RawMessage(plain.Data)
	case strings.HasPrefix(media, "text/"):
		data = string(plain.Data)
	}
	return e, e.SetData(contentType, data)
}

func post(ctx context.Context, to, mode string, events []event.Event) (status int, answer string, err error) {
	var req *http.Request
	switch mode {
	case "batch":
		req, err = cehttp.NewHTTPRequestFromEvents(ctx, to, events)
	case "structured":
		req, err = cehttp.NewHTTPRequestFromEvent(binding.WithForceStructured(ctx), to, events[0])
	default:
		req, err = cehttp.NewHTTPRequestFromEvent(binding.WithForceBinary(ctx), to, events[0])
	}
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var body bytes.Buffer
	_, err = body.ReadFrom(resp.Body)
	return resp.StatusCode, body.String(), err
}
