package config_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.NoError(t, config.CheckFile("a.b", ""))
	assert.NoError(t, config.CheckFile("a.b", file))
	assert.EqualError(t, config.CheckFile("a.b", dir), "a.b: must name a readable file: is a directory")
	assert.EqualError(t, config.CheckFile("a.b", filepath.Join(dir, "none")), "a.b: must name a readable file: no such file or directory")

	// A pipe is not opened: that would wait for who writes to it, or take what is in it.
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	assert.NoError(t, config.CheckFile("a.b", pipe))

	assert.NoError(t, config.CheckAuthorities("a.b", ""))
	assert.EqualError(t, config.CheckAuthorities("a.b", file), "a.b: must name a readable file of PEM certificates: it holds no PEM certificate")
}
