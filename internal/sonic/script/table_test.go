package script_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// Every command of the table that the library is to run has a function of the library, and a row of
// TestRows. Flushes have tests of their own.
func TestEveryWriteHasAFunctionAndARow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := redis.NewClient(&redis.Options{Addr: stack.PrivateRedis(t).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, script.Load(ctx, c))
	libraries, err := c.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: "sonic"}).Result()
	require.NoError(t, err)
	var functions []string
	for _, f := range libraries[0].Functions {
		functions = append(functions, f.Name)
	}
	table, err := command.NewTable()
	require.NoError(t, err)
	var tested []string
	for _, row := range rows {
		for _, line := range commands(row.command) {
			tested = append(tested, strings.ToLower(line[0]))
		}
	}
	for _, cmd := range table.All() {
		if cmd.Class != command.Write && cmd.Class != command.Blocking {
			continue
		}
		if !slices.Contains(functions, "sonic_"+cmd.Name) {
			t.Errorf("%s has no function", cmd.Name)
		}
		if !slices.Contains(tested, cmd.Name) && !strings.HasPrefix(cmd.Name, "flush") {
			t.Errorf("%s has no row", cmd.Name)
		}
	}
}
