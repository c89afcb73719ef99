package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Get reads the JSON of a URL into out.
func Get(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return send(req, func(resp *http.Response) (bool, error) {
		if resp.StatusCode != http.StatusOK {
			return false, nil
		}
		return true, json.NewDecoder(resp.Body).Decode(out)
	})
}

// Put sends a value as JSON.
func Put(ctx context.Context, url string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return send(req, succeeded)
}

// Del deletes what a URL names.
func Del(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	return send(req, succeeded)
}

func succeeded(resp *http.Response) (bool, error) { return resp.StatusCode/100 == 2, nil }

// send sends a request. accept reads the answer; false: its status is a failure.
func send(req *http.Request, accept func(*http.Response) (bool, error)) error {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	ok, err := accept(resp)
	if ok || err != nil {
		return err
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	return fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, text)
}
