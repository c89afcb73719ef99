package main

import (
	"net/http"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCurvesFollowTheServices(t *testing.T) {
	require.NoError(t, (*curves)(nil).scrape("x", "127.0.0.1:1"), "a smoke has none")
	c, err := newCurves(t.Context(), t.TempDir(), new(ports))
	require.NoError(t, err)
	defer c.close()
	require.NoError(t, c.scrape("pigeonhole", "127.0.0.1:1"))
	require.NoError(t, c.scrape("sonic-a", "127.0.0.1:2"))
	text, err := os.ReadFile(c.file)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"targets":["127.0.0.1:1"],"labels":{"job":"pigeonhole"}},{"targets":["127.0.0.1:2"],"labels":{"job":"sonic-a"}}]`, string(text))

	get := func() (status int, location string) {
		client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := client.Get(c.url())
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode, resp.Header.Get("Location")
	}
	status, _ := get()
	assert.Equal(t, http.StatusServiceUnavailable, status)
	c.drawnBy("127.0.0.1:9090")
	_, location := get()
	assert.Equal(t, c.page(), location)
	page, err := url.Parse(c.page())
	require.NoError(t, err)
	assert.Equal(t, "/graph", page.Path)
	assert.Contains(t, page.Query().Get("g1.expr"), "pigeonhole_messages_total")
}
