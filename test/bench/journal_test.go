package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFioResult(t *testing.T) {
	got, err := fioResult([]byte(`note: a file was laid out
{"jobs": [{"write": {"bw_bytes": 2000000}, "sync": {"lat_ns": {"max": 5000000, "N": 9,
	"percentile": {"50.000000": 1000000, "99.000000": 2000000, "99.900000": 3000000}}}}]}`))
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{
		"disk_mb_s": 2, "disk_sync_p50_ms": 1, "disk_sync_p99_ms": 2, "disk_sync_p999_ms": 3, "disk_sync_max_ms": 5,
	}, got.Figures)

	_, err = fioResult([]byte(`{"jobs": []}`))
	assert.ErrorContains(t, err, "synced nothing")
}
