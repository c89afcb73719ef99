package main

import (
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCurvesFollowTheServices(t *testing.T) {
	require.NoError(t, (*curves)(nil).scrape("x", "127.0.0.1:1"), "a smoke has none")
	c, err := newCurves(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, c.scrape("pigeonhole", "127.0.0.1:1"))
	require.NoError(t, c.scrape("sonic-a", "127.0.0.1:2"))
	text, err := os.ReadFile(c.file)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"targets":["127.0.0.1:1"],"labels":{"job":"pigeonhole"}},{"targets":["127.0.0.1:2"],"labels":{"job":"sonic-a"}}]`, string(text))

	c.address = "127.0.0.1:9090"
	page, err := url.Parse(c.page())
	require.NoError(t, err)
	assert.Equal(t, "/graph", page.Path)
	assert.Contains(t, page.Query().Get("g1.expr"), "pigeonhole_messages_total")
}
