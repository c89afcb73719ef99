package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const deployments = "../../../deployments"

// faster is by how much the durations of the rules are divided, so that alerts fire within seconds.
const faster = 60

func parse(t testing.TB, expr string) parser.Expr {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	require.NoError(t, err, expr)
	return parsed
}

// shorten divides the windows and offsets of an expression, and the bounds that are durations: those
// that a metric called _age_seconds or _lag_seconds is compared with.
func shorten(t testing.TB, expr string) string {
	t.Helper()
	parsed := parse(t, expr)
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.MatrixSelector:
			n.Range /= faster
		case *parser.VectorSelector:
			n.OriginalOffset /= faster
		case *parser.BinaryExpr:
			if bound, is := n.RHS.(*parser.NumberLiteral); is && (strings.Contains(n.LHS.String(), "_age_seconds") || strings.Contains(n.LHS.String(), "_lag_seconds")) {
				bound.Val /= faster
			}
		}
		return nil
	})
	return parsed.String()
}

// rules are a file of rules.
type rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// allRules returns the rules of all files by their paths.
func allRules(t testing.TB) map[string]rules {
	t.Helper()
	paths, err := filepath.Glob(deployments + "/prometheus/*.rules.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := map[string]rules{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var r rules
		require.NoError(t, yaml.Unmarshal(text, &r))
		all[path] = r
	}
	return all
}

// writeFaster writes the rules with shorter durations into a folder.
func writeFaster(t testing.TB, folder string) {
	t.Helper()
	for path, r := range allRules(t) {
		for _, group := range r.Groups {
			for i := range group.Rules {
				one := &group.Rules[i]
				one.Expr = shorten(t, one.Expr)
				if one.For != "" {
					d, err := model.ParseDuration(one.For)
					require.NoError(t, err)
					one.For = model.Duration(time.Duration(d) / faster).String()
				}
			}
		}
		text, err := yaml.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, filepath.Base(path)), text, 0o600))
	}
}

// A panel is a panel of a dashboard.
type panel struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`

	row string
}

// dashboards returns the panels of each dashboard by its name, rows excluded. The variables of
// Grafana have values.
func dashboards(t testing.TB) map[string][]panel {
	t.Helper()
	paths, err := filepath.Glob(deployments + "/grafana/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	all := map[string][]panel{}
	values := strings.NewReplacer("$job", ".+", "$__rate_interval", "1m", "$__range", "1m")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var d struct {
			Panels []panel `json:"panels"`
		}
		require.NoError(t, json.Unmarshal(text, &d))
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		row := ""
		for _, p := range d.Panels {
			if p.Type == "row" {
				row = p.Title
				continue
			}
			p.row = row
			for i := range p.Targets {
				p.Targets[i].Expr = values.Replace(p.Targets[i].Expr)
			}
			all[name] = append(all[name], p)
		}
	}
	return all
}
