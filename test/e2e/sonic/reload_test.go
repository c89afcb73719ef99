package sonic

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// A SIGHUP brings other users. What takes effect at a start only is refused by name, and then
// nothing changes.
func TestHangupReadsTheConfigurationAgain(t *testing.T) {
	t.Parallel()
	pulsar, r := stack.Pulsar(t), durable(t)
	file := filepath.Join(t.TempDir(), "sonic.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("users: [{name: default, password: first}]")
	s := systems.Run(t, []string{"-config.file", file}, []string{
		"SONIC_ADMIN_LISTEN=127.0.0.1:0", "SONIC_LISTEN=127.0.0.1:0",
		"SONIC_TOPIC=persistent://" + pulsar.Namespace(t) + "/sonic", "SONIC_PULSAR_URL=" + pulsar.URL(), "SONIC_REDIS_URL=" + r.URL(),
	})
	c := redis.NewClient(&redis.Options{Addr: s.Address("redis"), MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	taken := func(password string) bool { return c.Do(t.Context(), "AUTH", password).Err() == nil }
	systems.Await(t, await.Patience, "the first password is taken", func() bool { return taken("first") })

	write("users: [{name: default, password: second}]\nack: published")
	s.Signal(syscall.SIGHUP)
	systems.Await(t, await.Patience, "it is refused", func() bool { return strings.Contains(s.Log(), "configuration not changed") })
	require.Contains(t, s.Log(), `ack: takes effect at the next start`)
	require.False(t, taken("second"))

	write("users: [{name: default, password: second}]")
	s.Signal(syscall.SIGHUP)
	systems.Await(t, await.Patience, "the second password is taken", func() bool { return taken("second") })
	require.False(t, taken("first"))
}
