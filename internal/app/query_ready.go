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
	// queryTimeout is longer than a check may take.
	queryTimeout = 2 * checkTimeout
	maxAnswer    = 64 << 10
)

// queryReady requests /-/ready of the service whose admin server listens at an address of the
// configuration. It returns the answer, or an error if the service is not ready. It serves health
// checks in images, which have no other HTTP client.
func queryReady(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin.listen: %w", err)
	}
	if port == "0" {
		return "", errors.New("admin.listen has port 0: the port of the service is not known")
	}
	switch host { // all addresses: one of them
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
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
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	text := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("not ready: %s: %s", resp.Status, text)
	}
	return text + "\n", err
}
