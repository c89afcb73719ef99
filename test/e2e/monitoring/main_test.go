// Package monitoring runs the four services with a real Prometheus, and checks the dashboards and
// alerts of the folder deployments: every metric exists, every query returns data, and every alert
// fires when its cause is provoked.
//
// make test provokes some alerts only. AVIARY_MONITORING_FAULTS=1 (make soak MONITORING=1)
// provokes all of them. AVIARY_MONITORING_PICTURES=1 makes the pictures of docs/img again.
package monitoring

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/systems"
)

// The variables that ask for more.
const (
	long     = "AVIARY_MONITORING_FAULTS"
	pictures = "AVIARY_MONITORING_PICTURES"
)

// service is the variable that says which service a process is.
const service = "AVIARY_MONITORED"

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	systems.Main(m, func() int {
		switch os.Getenv(service) {
		case "nightingale":
			return app.Main(app.Program[nightingale.Config]{Name: "nightingale", Defaults: nightingale.DefaultConfig, Build: nightingale.Build})
		case "pigeonhole":
			return app.Main(app.Program[pigeonhole.Config]{Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Build: pigeonhole.Build})
		case "sonic":
			return app.Main(app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Flags: sonic.Flags, Build: sonic.Build})
		default:
			return app.Main(app.Program[eventbridge.Config]{Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build})
		}
	})
}
