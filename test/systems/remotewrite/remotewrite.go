// Package remotewrite sends requests of Prometheus remote write, for tests, benchmarks and the
// demo.
package remotewrite

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/klauspost/compress/snappy"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// A Message is a request of either version: prompb.WriteRequest or writev2.Request.
type Message interface{ Marshal() ([]byte, error) }

// An Answer is what the receiver said.
type Answer struct {
	Status int
	Text   string
	Header http.Header
}

// Send sends a request once, as Prometheus does. more are further headers, such as X-Scope-OrgID.
func Send(ctx context.Context, url string, m Message, more http.Header) (Answer, error) {
	body, err := m.Marshal()
	if err != nil {
		return Answer{}, err
	}
	_, second := m.(*writev2.Request)
	req, err := NewRequest(ctx, url, second, snappy.Encode(nil, body))
	if err != nil {
		return Answer{}, err
	}
	for name, values := range more {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, string(text), resp.Header}, err
}

// NewRequest makes a request of version 1.0 or 2.0 of what was compressed already.
func NewRequest(ctx context.Context, url string, second bool, compressed []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	kind, version := "application/x-protobuf", "0.1.0"
	if second {
		kind, version = kind+";proto=io.prometheus.write.v2.Request", "2.0.0"
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("X-Prometheus-Remote-Write-Version", version)
	return req, nil
}
