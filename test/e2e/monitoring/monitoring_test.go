package monitoring

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"
)

// TestMonitoring runs all. In its short form it has the faults of single messages only.
func TestMonitoring(t *testing.T) {
	began := time.Now()
	stage := func(name string) { t.Logf("%s after %s", name, time.Since(began).Round(time.Second)) }
	p := startPrometheus(t)
	w := newFixture(t)
	w.traffic()
	p.scrape(w.targets()...)
	systems.Await(t, await.Patience, "all are scraped and ready", func() bool { return len(p.query(`aviary_ready == 1`)) == 8 })
	stage("all are ready")
	systems.Await(t, await.Patience, "the longest windows have data", func() bool { return len(p.query(`aviary_ready offset 15s`)) == 8 })
	systems.Await(t, await.Patience, "no alert fires", func() bool { return len(p.firing()) == 0 })
	stage("all is well")

	fault := faults{w, p}
	fault.ofSingleMessages()
	queriesGiveData(t, p)
	stage("all queries have data")
	if os.Getenv(pictures) != "" {
		makePictures(t, p)
	}
	if os.Getenv(long) == "" {
		return
	}
	fault.ofPigeonhole()
	fault.ofRedis()
	fault.ofSubscribers()
	fault.ofTheEngine()
	fault.ofTheBroker()
	stage("all has failed")
	fired := map[string]bool{}
	for _, series := range p.query(`last_over_time(ALERTS{alertstate="firing"}[1h])`) {
		fired[series["alertname"]] = true
	}
	for _, r := range allRules(t) {
		for _, group := range r.Groups {
			for _, rule := range group.Rules {
				assert.True(t, fired[rule.Alert], "%s has not fired", rule.Alert)
			}
		}
	}
}
