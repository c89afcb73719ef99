package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

const (
	// askTimeout is longer than a check may take.
	askTimeout = 2 * checkTimeout
	askAnswer  = 64 << 10
)

// askReady asks the service whose admin server listens at that address of the configuration. What it answers is the text, or the error when it is not
// ready. Images have no program that could ask.
func askReady(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin.listen: %w", err)
	}
	if port == "0" {
		return "", errors.New("admin.listen has port 0: nobody knows which one the service has")
	}
	switch host { // all addresses: one of them
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/-/ready", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req) // no proxy
	if err != nil {
		return "", fmt.Errorf("not ready: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, askAnswer))
	text := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("not ready: %s: %s", resp.Status, text)
	}
	return text + "\n", err
}
