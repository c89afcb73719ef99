package stack

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
)

// admin talks to a broker's REST API. It keeps no connection open: servers here are killed and paused.
type admin struct {
	base   string
	token  string
	client *http.Client
}

func newAdmin(base, token string) *admin {
	return &admin{
		base:  strings.TrimRight(base, "/"),
		token: token,
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{DisableKeepAlives: true},
		},
	}
}

// statusError is an answer other than 2xx.
type statusError struct {
	request string
	status  int
	body    string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.request, e.status, firstLine(e.body))
}

func isStatus(err error, status int) bool {
	e := (*statusError)(nil)
	return errors.As(err, &e) && e.status == status
}

func avoidsBookie(err error) bool {
	e := (*statusError)(nil)
	return errors.As(err, &e) && e.status == http.StatusInternalServerError && strings.Contains(e.body, "Not enough non-faulty bookies")
}

// do sends in as JSON unless nil and decodes the answer into out unless nil. A *string takes the answer as it is.
//
// A busy machine's broker that has just started may avoid its only bookie for some seconds: do then asks again, until
// ctx ends. A PUT that failed so may have made a part of what it makes, so a later "exists already" is its success.
func (a *admin) do(ctx context.Context, method, path string, in, out any) error {
	again := false
	for {
		err := a.once(ctx, method, path, in, out)
		switch {
		case err == nil, again && method == http.MethodPut && isStatus(err, http.StatusConflict):
			return nil
		case !avoidsBookie(err):
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

func (a *admin) once(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
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
		return &statusError{request: method + " " + path, status: resp.StatusCode, body: string(data)}
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

// healthy asks for what clients need first: a broker that passes messages, its namespaces, a lookup.
func (a *admin) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := a.do(ctx, http.MethodGet, "/admin/v2/brokers/health", nil, nil); err != nil {
		return err
	}
	var namespaces []string
	if err := a.do(ctx, http.MethodGet, "/admin/v2/namespaces/public", nil, &namespaces); err != nil {
		return err
	}
	if !slices.Contains(namespaces, "public/default") {
		return errors.New("namespace public/default does not exist yet")
	}
	return a.do(ctx, http.MethodGet, "/lookup/v2/topic/persistent/public/default/health", nil, nil)
}

// topicPath turns persistent://tenant/namespace/topic into its admin path.
func topicPath(topic string) string {
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

// createTopic creates a topic without partitions when partitions is 0.
func (a *admin) createTopic(ctx context.Context, topic string, partitions int) error {
	if partitions == 0 {
		return a.do(ctx, http.MethodPut, topicPath(topic), nil, nil)
	}
	return a.do(ctx, http.MethodPut, topicPath(topic)+"/partitions", partitions, nil)
}

func (a *admin) partitions(ctx context.Context, topic string) (int, error) {
	var meta struct {
		Partitions int `json:"partitions"`
	}
	err := a.do(ctx, http.MethodGet, topicPath(topic)+"/partitions?checkAllowAutoCreation=false", nil, &meta)
	return meta.Partitions, err
}

// deleteNamespace deletes a namespace with everything in it. A broker that forbids that, which ours do not, has its
// topics deleted one by one.
func (a *admin) deleteNamespace(ctx context.Context, ns string) error {
	err := a.do(ctx, http.MethodDelete, "/admin/v2/namespaces/"+ns+"?force=true", nil, nil)
	if !isStatus(err, http.StatusMethodNotAllowed) {
		return err
	}
	for _, kind := range []string{"/partitioned", ""} {
		var topics []string
		if err := a.do(ctx, http.MethodGet, "/admin/v2/persistent/"+ns+kind, nil, &topics); err != nil {
			return err
		}
		for _, topic := range topics {
			path := topicPath(topic)
			if kind != "" {
				path += "/partitions"
			}
			if err := a.do(ctx, http.MethodDelete, path+"?force=true", nil, nil); err != nil && !isStatus(err, http.StatusNotFound) {
				return err
			}
		}
	}
	return a.do(ctx, http.MethodDelete, "/admin/v2/namespaces/"+ns, nil, nil)
}

// produce publishes one message over REST: enough to see whether data moves, without a client library.
func (a *admin) produce(ctx context.Context, topic, payload string) error {
	path := "/topics" + strings.TrimPrefix(topicPath(topic), "/admin/v2")
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
	if err := a.do(ctx, http.MethodPost, path, in, &answer); err != nil {
		return err
	}
	for _, r := range answer.Results {
		if r.Error != "" || r.ErrorCode > 0 {
			return fmt.Errorf("cannot publish to %s: %d %s", topic, r.ErrorCode, r.Error)
		}
	}
	return nil
}
