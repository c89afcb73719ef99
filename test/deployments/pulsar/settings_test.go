// Package pulsar checks configs/pulsar and deployments/pulsar on the real Pulsar. It has tests
// only.
package pulsar

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
)

const (
	root        = "../../.."
	waitTimeout = 5 * time.Minute
)

var kinds = []string{"business", "ops"}

// scaled is what the tests set otherwise than the files, because there is one bookie on this
// machine. The stack sets addresses and the folders of journal and ledgers, and the JVMs' memory.
var scaled = map[string]string{
	"managedLedgerDefaultEnsembleSize": "1",
	"managedLedgerDefaultWriteQuorum":  "1",
	"managedLedgerDefaultAckQuorum":    "1",
}

func files(kind string) string { return filepath.Join(root, "configs", "pulsar", kind) }

// The parts of a file.
const (
	different = "### Different from Pulsar's own file"
	depended  = "### Pulsar's own values that Aviary depends on"
)

// settings returns the keys of a file with their values: those that differ from Pulsar's own, and
// those that do not.
func settings(t *testing.T, path string) (changed, kept map[string]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), different)
	require.True(t, found, "%s has no line %q", path, different)
	first, second, found := strings.Cut(rest, depended)
	require.True(t, found, "%s has no line %q", path, depended)
	return keys(first), keys(second)
}

func keys(text string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			found[key] = value
		}
	}
	return found
}

// apply runs deployments/pulsar/apply.sh.
func apply(ctx context.Context, dir, conf string) error {
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "deployments", "pulsar", "apply.sh"), dir, conf).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestEveryKeyIsInPulsarsOwnFile(t *testing.T) {
	home := distribution(t)
	for _, kind := range kinds {
		for _, file := range []string{"broker.conf", "bookkeeper.conf"} {
			original, err := os.ReadFile(filepath.Join(home, "conf", file))
			require.NoError(t, err)
			own := keys(string(original))
			changed, kept := settings(t, filepath.Join(files(kind), file))
			for key, value := range changed {
				assert.Regexp(t, `(?m)^(# )?`+key+`=`, string(original), "%s: %s is not a key of this version", kind, file)
				assert.NotEqual(t, own[key], value, "%s: %s: %s is Pulsar's own value: move it to the other part", kind, file, key)
			}
			for key, value := range kept {
				assert.Contains(t, own, key, "%s: %s: Pulsar's own file does not say", kind, file)
				assert.Equal(t, own[key], value, "%s: %s: %s is not Pulsar's own value: move it to the other part", kind, file, key)
			}
		}
	}
}

// distribution returns the folder of Pulsar.
func distribution(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	home, err := stack.PulsarHome(ctx, os.Stderr)
	if err != nil {
		stack.Unavailable(t, "pulsar", err)
	}
	return home
}

func TestJVMTakesTheOptions(t *testing.T) {
	for _, kind := range kinds {
		for _, program := range []string{"PULSAR", "BOOKIE"} {
			script := `. "$0" && java $` + program + `_MEM $` + program + `_GC -XX:-AlwaysPreTouch -version`
			out, err := exec.CommandContext(t.Context(), "bash", "-euc", script, filepath.Join(files(kind), "jvm.env")).CombinedOutput()
			assert.NoError(t, err, "%s: %s: %s", kind, program, out)
		}
	}
}

func TestServersHaveTheSettings(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
			defer cancel()
			small := t.TempDir()
			var lines strings.Builder
			for key, value := range scaled {
				fmt.Fprintf(&lines, "%s=%s\n", key, value)
			}
			require.NoError(t, os.WriteFile(filepath.Join(small, "broker.conf"), []byte(lines.String()), 0o600))
			srv := stack.PrivatePulsarProcesses(t, func(conf string) error {
				if err := apply(ctx, files(kind), conf); err != nil {
					return err
				}
				return apply(ctx, small, conf)
			})

			var broker map[string]string
			require.NoError(t, srv.Admin(ctx, http.MethodGet, "/admin/v2/brokers/configuration/runtime", nil, &broker))
			wanted := all(t, kind, "broker.conf")
			maps.Copy(wanted, scaled)
			for key, value := range wanted {
				assert.Equal(t, value, broker[key], "broker: %s", key)
			}

			var bookie map[string]any // a key that is there twice is a list
			require.NoError(t, pulsaradmin.New(srv.BookieURL, "").Do(ctx, http.MethodGet, "/api/v1/config/server_config", nil, &bookie))
			wanted = all(t, kind, "bookkeeper.conf")
			for key, value := range wanted {
				assert.Equal(t, value, bookie[key], "bookie: %s", key)
			}

			hasOptions(t, srv.BrokerLog, "broker", kind)
			hasOptions(t, srv.BookieLog, "bookie", kind)
			passesAMessage(ctx, t, srv)
		})
	}
}

func all(t *testing.T, kind, file string) map[string]string {
	t.Helper()
	changed, kept := settings(t, filepath.Join(files(kind), file))
	maps.Copy(changed, kept)
	return changed
}

// hasOptions checks that a JVM runs with the collector's options, and chooses the size of the new
// generation itself.
func hasOptions(t *testing.T, log, process, kind string) {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(files(kind), "jvm.env"))
	require.NoError(t, err)
	options := regexp.MustCompile(`(?m)^PULSAR_GC=.*"(.*)"`).FindSubmatch(env)
	require.NotNil(t, options, "jvm.env has no PULSAR_GC")
	flags, err := os.ReadFile(log)
	require.NoError(t, err)
	for _, option := range strings.Fields(string(options[1])) {
		name, value, found := strings.Cut(strings.TrimPrefix(option, "-XX:"), "=")
		if !found {
			value = fmt.Sprint(name[0] == '+')
			name = name[1:]
		}
		assert.Regexp(t, ` `+name+` += `+value+` .*command line`, string(flags), "%s", process)
	}
	for _, name := range []string{"NewSize", "MaxNewSize", "G1NewSizePercent", "G1MaxNewSizePercent"} {
		assert.NotRegexp(t, ` `+name+` += .*command line`, string(flags), "%s", process)
	}
}

func passesAMessage(ctx context.Context, t *testing.T, srv *stack.PulsarProcesses) {
	t.Helper()
	topic := srv.Topic(t, srv.Namespace(t), 0)
	require.NoError(t, pulsar.Publish(ctx, srv.URL(), topic, &messaging.Record{Payload: []byte("sent")}))
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var read []string
	require.NoError(t, pulsar.Read(reading, srv.URL(), topic, "test", func(d *messaging.Delivery) {
		read = append(read, string(d.Payload))
		stop()
	}))
	assert.Equal(t, []string{"sent"}, read)
}
