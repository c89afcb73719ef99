package pulsaradmin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// Client talks to a broker's REST API. It keeps no connection open: servers here are killed and
// paused.
type Client struct {
	Base   string
	token  string
	client *http.Client
}

// New returns a client of the API at base, with the token; empty: without.
func New(base, token string) *Client {
	return &Client{
		Base:  strings.TrimRight(base, "/"),
		token: token,
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{DisableKeepAlives: true},
		},
	}
}

// StatusError is an answer other than 2xx.
type StatusError struct {
	request string
	Status  int
	body    string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.request, e.Status, process.FirstLine(e.body))
}

// IsStatus reports whether err is an answer with that status.
func IsStatus(err error, status int) bool {
	e := (*StatusError)(nil)
	return errors.As(err, &e) && e.Status == status
}

// isCutOff reports whether the broker has lost its connection to its only bookie or to itself, or
// avoids the bookie.
func isCutOff(err error) bool {
	e := (*StatusError)(nil)
	return errors.As(err, &e) && e.Status == http.StatusInternalServerError &&
		(strings.Contains(e.body, "Not enough non-faulty bookies") || strings.Contains(e.body, "ClosedChannelException") ||
			strings.Contains(e.body, "Disconnected from server"))
}

// Do sends in as JSON unless nil and decodes the answer into out unless nil. A *string takes the
// answer as it is.
//
// A busy machine's broker may avoid its only bookie, or lose its connection to it or to itself, for
// some seconds: Do then asks again, until ctx ends. A PUT that failed so may have made a part of what
// it makes, so a later "exists already" is its success.
func (a *Client) Do(ctx context.Context, method, path string, in, out any) error {
	again := false
	for {
		err := a.once(ctx, method, path, in, out)
		switch {
		case err == nil, again && method == http.MethodPut && IsStatus(err, http.StatusConflict):
			return nil
		case !isCutOff(err):
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
			again = true
		case <-ctx.Done():
			return err
		}
	}
}

func (a *Client) once(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.Base+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return &StatusError{request: method + " " + path, Status: resp.StatusCode, body: string(data)}
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *string:
		*out = string(data)
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: cannot decode the answer: %w", method, path, err)
	}
	return nil
}

// Healthy asks for what clients need first: a broker that passes messages, its namespaces, a
// lookup.
func (a *Client) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := a.Do(ctx, http.MethodGet, "/admin/v2/brokers/health", nil, nil); err != nil {
		return err
	}
	var namespaces []string
	if err := a.Do(ctx, http.MethodGet, "/admin/v2/namespaces/public", nil, &namespaces); err != nil {
		return err
	}
	if !slices.Contains(namespaces, "public/default") {
		return errors.New("namespace public/default does not exist yet")
	}
	return a.Do(ctx, http.MethodGet, "/lookup/v2/topic/persistent/public/default/health", nil, nil)
}

// TopicPath turns persistent://tenant/namespace/topic into its admin path.
func TopicPath(topic string) string {
	domain, rest, found := strings.Cut(topic, "://")
	if !found {
		domain, rest = "persistent", topic
	}
	parts := strings.SplitN(rest, "/", 3)
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/admin/v2/" + domain + "/" + strings.Join(parts, "/")
}

// CreateTopic creates a topic without partitions when partitions is 0.
func (a *Client) CreateTopic(ctx context.Context, topic string, partitions int) error {
	if partitions == 0 {
		return a.Do(ctx, http.MethodPut, TopicPath(topic), nil, nil)
	}
	return a.Do(ctx, http.MethodPut, TopicPath(topic)+"/partitions", partitions, nil)
}

// Partitions is the number of partitions; 0: the topic is not partitioned.
func (a *Client) Partitions(ctx context.Context, topic string) (int, error) {
	var meta struct {
		Partitions int `json:"partitions"`
	}
	err := a.Do(ctx, http.MethodGet, TopicPath(topic)+"/partitions?checkAllowAutoCreation=false", nil, &meta)
	return meta.Partitions, err
}

// DeleteNamespace deletes a namespace with everything in it. A broker that forbids that, which ours
// do not, has its topics deleted one by one.
func (a *Client) DeleteNamespace(ctx context.Context, ns string) error {
	err := a.Do(ctx, http.MethodDelete, "/admin/v2/namespaces/"+ns+"?force=true", nil, nil)
	if !IsStatus(err, http.StatusMethodNotAllowed) {
		return err
	}
	for _, kind := range []string{"/partitioned", ""} {
		var topics []string
		if err := a.Do(ctx, http.MethodGet, "/admin/v2/persistent/"+ns+kind, nil, &topics); err != nil {
			return err
		}
		for _, topic := range topics {
			path := TopicPath(topic)
			if kind != "" {
				path += "/partitions"
			}
			if err := a.Do(ctx, http.MethodDelete, path+"?force=true", nil, nil); err != nil && !IsStatus(err, http.StatusNotFound) {
				return err
			}
		}
	}
	return a.Do(ctx, http.MethodDelete, "/admin/v2/namespaces/"+ns, nil, nil)
}

// Produce publishes one message over REST: enough to see whether data moves, without a client
// library.
func (a *Client) Produce(ctx context.Context, topic, payload string) error {
	path := "/topics" + strings.TrimPrefix(TopicPath(topic), "/admin/v2")
	in := map[string]any{
		"valueSchema":  `{"name":"","schema":"","type":"STRING","properties":{}}`,
		"producerName": "",
		"messages":     []map[string]string{{"payload": payload}},
	}
	var answer struct {
		Results []struct {
			ErrorCode int    `json:"errorCode"`
			Error     string `json:"error"`
		} `json:"messagePublishResults"`
	}
	if err := a.Do(ctx, http.MethodPost, path, in, &answer); err != nil {
		return err
	}
	for _, r := range answer.Results {
		if r.Error != "" || r.ErrorCode > 0 {
			return fmt.Errorf("cannot publish to %s: %d %s", topic, r.ErrorCode, r.Error)
		}
	}
	return nil
}
