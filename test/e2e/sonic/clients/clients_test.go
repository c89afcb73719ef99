package clients

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestClientsOfRedis: what the programs expect is what Redis does.
func TestClientsOfRedis(t *testing.T) {
	t.Parallel()
	Run(t, stack.PrivateRedis(t, stack.Conf(map[string]string{"requirepass": "secret"})).URL())
}

// TestClientsFindFaults: a Redis without SPOP fails one check of every program, and no other.
func TestClientsFindFaults(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t, stack.Conf(map[string]string{"rename-command": `SPOP ""`}))
	for _, p := range programs() {
		for _, protocol := range p.protocols {
			t.Run(fmt.Sprintf("%s/RESP%d", p.name, protocol), func(t *testing.T) {
				t.Parallel()
				out := p.run(t, srv.URL(), protocol)
				for _, name := range Checks() {
					if name == "sets" {
						assert.Contains(t, out.checks[name], "unknown command")
					} else {
						why, ran := out.checks[name]
						assert.True(t, ran && why == "", "%s: %s", name, why)
					}
				}
			})
		}
	}
}
