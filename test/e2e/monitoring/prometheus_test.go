package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// patience is how long the test waits for an alert before it fails.
const patience = await.Patience

// prometheus is a real one that scrapes every second, with the rules and their shorter durations.
type prometheus struct {
	t       testing.TB
	url     string
	targets string // file of what it scrapes
}

var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

func startPrometheus(t testing.TB) *prometheus {
	t.Helper()
	server, _ := stack.Prometheus(t)
	dir := t.TempDir()
	writeFaster(t, dir)
	p := &prometheus{t: t, targets: filepath.Join(dir, "targets.json")}
	p.scrape()
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, []byte(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["*.rules.yaml"]
scrape_configs:
  - job_name: all
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.Command(server, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.Stderr = log
	child, err := owned.Start(cmd, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, child.Kill())
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus wrote:\n%s", text[max(0, len(text)-4000):])
		}
	})
	systems.Await(t, await.Patience, "Prometheus is ready", func() bool {
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		found := listening.FindSubmatch(text)
		if found == nil {
			return false
		}
		p.url = "http://" + string(found[1])
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// A target is an address to scrape, with the labels of its series.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// scrape sets what is scraped.
func (p *prometheus) scrape(targets ...target) {
	p.t.Helper()
	text, err := json.Marshal(append([]target{}, targets...))
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(p.targets+".new", text, 0o600))
	require.NoError(p.t, os.Rename(p.targets+".new", p.targets))
}

// get asks the API and reads the data of its answer.
func (p *prometheus) get(path string, parameters url.Values, into any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+parameters.Encode(), http.NoBody)
	require.NoError(p.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Equal(p.t, "success", answer.Status, "%s %v: %s", path, parameters, answer.Error)
}

// query returns the series that a query gives now.
func (p *prometheus) query(expr string) (series []map[string]string) {
	p.t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
		} `json:"result"`
	}
	p.get("/api/v1/query", url.Values{"query": {expr}}, &data)
	for _, r := range data.Result {
		series = append(series, r.Metric)
	}
	return series
}

// firing returns the alerts that fire.
func (p *prometheus) firing() (names []string) {
	p.t.Helper()
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	p.get("/api/v1/alerts", nil, &data)
	for _, a := range data.Alerts {
		if a.State == "firing" {
			text := fmt.Sprint(a.Annotations)
			require.False(p.t, strings.Contains(text, "error expanding") || strings.Contains(text, "no value"), "%v", a)
			names = append(names, a.Labels["alertname"])
		}
	}
	return names
}

// awaitAlerts waits until each of these alerts fires or has fired a moment ago. One that does not
// fails the test, which goes on.
func (p *prometheus) awaitAlerts(names ...string) {
	p.t.Helper()
	began := time.Now()
	for _, name := range names {
		fires := func() bool {
			p.firing() // whose texts are looked at
			return len(p.query(`last_over_time(ALERTS{alertstate="firing", alertname="`+name+`"}[20s])`)) > 0
		}
		for !fires() {
			if time.Since(began) > patience {
				p.t.Errorf("%s does not fire: %v", name, p.query(`ALERTS{alertname="`+name+`"}`))
				break
			}
			time.Sleep(200 * time.Millisecond) // polling a condition
		}
		p.t.Logf("%s after %s", name, time.Since(began).Round(time.Second))
	}
}
