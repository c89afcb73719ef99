package monitoring

import (
	"net/url"
	"slices"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
)

// Labels that are not of the services: Prometheus or the operator sets them.
var ofPrometheus = []string{"job", "instance", "zone", model.MetricNameLabel}

// metricsExist fails the test for each metric of an expression that no service has, and for each
// label that the metrics of an expression do not have.
func metricsExist(t *testing.T, p *prometheus, of, expr string) {
	t.Helper()
	has := map[string]bool{}
	var wanted []string
	parser.Inspect(parse(t, expr), func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if n.Name == "ALERTS" {
				break // Prometheus makes it
			}
			var series []map[string]string
			p.get("/api/v1/series", url.Values{"match[]": {n.Name}}, &series)
			assert.NotEmpty(t, series, "%s: there is no metric %s", of, n.Name)
			for _, s := range series {
				for name := range s {
					has[name] = true
				}
			}
			for _, m := range n.LabelMatchers {
				wanted = append(wanted, m.Name)
			}
		case *parser.AggregateExpr:
			wanted = append(wanted, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				wanted = append(wanted, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	for _, name := range wanted {
		assert.True(t, has[name] || slices.Contains(ofPrometheus, name), "%s: no metric of %s has the label %s", of, expr, name)
	}
}

// withoutData are queries that give nothing while what they show does not happen, and one whose
// series begins with its first message: of that there is no rate.
var withoutData = []string{
	"nightingale: Samples filtered", "eventbridge: Requests refused", "pulsar: Producers and subscriptions made again", "pigeonhole: Refused",
}

// queriesGiveData fails the test for each query of a dashboard that has given nothing at any time: a
// slow machine may ask after the window of a rate has passed.
func queriesGiveData(t *testing.T, p *prometheus) {
	t.Helper()
	n := 0
	for name, panels := range dashboards(t) {
		for _, panel := range panels {
			for _, target := range panel.Targets {
				of := name + ": " + panel.Title
				metricsExist(t, p, of, target.Expr)
				if !slices.Contains(withoutData, of) {
					assert.NotEmpty(t, p.query("last_over_time(("+target.Expr+")[1h:5s])"), "%s: %s", of, target.Expr)
				}
				n++
			}
		}
	}
	assert.Greater(t, n, 80)
	for _, r := range allRules(t) {
		for _, group := range r.Groups {
			for _, rule := range group.Rules {
				metricsExist(t, p, rule.Alert, rule.Expr)
			}
		}
	}
}
