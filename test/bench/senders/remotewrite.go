package senders

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/systems/remotewrite"
)

// RemoteWrite sends requests with p.Callers connections. Each connection sends p.Count requests,
// made before the clock starts, one after the other. With Count 0 it makes and sends requests until
// p.Seconds have passed.
func RemoteWrite(ctx context.Context, p Load, m *measure.Meter) error {
	transport := &http.Transport{MaxIdleConnsPerHost: p.Callers, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	bodies := make([]func(n int) ([]byte, error), p.Callers)
	for c := range bodies {
		bodies[c] = p.Remote.Bodies(c)
		if p.Count > 0 {
			made := make([][]byte, p.Count)
			for n := range made {
				var err error
				if made[n], err = bodies[c](n); err != nil {
					return err
				}
			}
			bodies[c] = func(n int) ([]byte, error) { return made[n], nil }
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	var senders errgroup.Group
	var refused atomic.Int64
	times := make([][]time.Duration, p.Callers)
	for c := range p.Callers {
		senders.Go(func() error {
			for n := 0; n < p.Count || time.Since(m.Began).Seconds() < p.Seconds; n++ {
				body, err := bodies[c](n)
				if err != nil {
					return err
				}
				began := time.Now()
				again, err := post(ctx, client, p.URL, p.Remote.Version == 2, body)
				refused.Add(int64(again))
				if err != nil {
					return err
				}
				times[c] = append(times[c], time.Since(began))
			}
			return nil
		})
	}
	err := senders.Wait()
	all := slices.Concat(times...)
	m.Stop(len(all) * p.Remote.PerRequest())
	m.Latencies(all)
	m.Outcome.Refused = int(refused.Load())
	return err
}

// post sends a body until it is accepted, and returns how often it was refused. As Prometheus does,
// it repeats what is answered with 5xx, after 60 ms to 5 s.
func post(ctx context.Context, client *http.Client, url string, second bool, body []byte) (refused int, err error) {
	for ; ; refused++ {
		req, err := remotewrite.NewRequest(ctx, url, second, body)
		if err != nil {
			return refused, err
		}
		if refused > 0 {
			req.Header.Set("Retry-Attempt", strconv.Itoa(refused))
		}
		resp, err := client.Do(req)
		if err != nil {
			return refused, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		switch {
		case err != nil:
			return refused, err
		case resp.StatusCode/100 == 2:
			return refused, nil
		case resp.StatusCode/100 != 5:
			return refused, fmt.Errorf("%s: %s", resp.Status, text)
		}
		measure.Wait(ctx, min(60*time.Millisecond<<min(refused, 9), 5*time.Second))
	}
}
