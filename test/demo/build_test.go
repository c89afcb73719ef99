package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The demo and the services share compiled packages only if both are built with the same options.
func TestTheMakefileBuildsTheDemoLikeServices(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	require.NoError(t, err)
	require.Contains(t, string(makefile), "CGO_ENABLED=0 go build -gcflags='"+fastCompile+"' -ldflags='"+fastLink+"' -o bin/.demo ./test/demo")
}
