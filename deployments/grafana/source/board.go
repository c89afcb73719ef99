package main

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// A board is a dashboard. All boards have the same rows in the same order.
type board struct {
	name, title string
	// alerts is what the names of its alerts begin with. jobs are the values of the variable job: a
	// selector.
	alerts, jobs string

	status, throughput, latency, backlog, errors, resources []panel
}

// A panel shows queries over time; in the row "Status" it shows their latest values.
type panel struct {
	title, unit string
	queries     []query
}

// A query is PromQL. $job stands for the jobs that were chosen, $window for a window of rate().
type query struct{ legend, expr string }

// The units of panels, by Grafana's names.
const (
	count     = "short"
	perSecond = "cps"
	seconds   = "s"
	bytes     = "bytes"
	bytesRate = "Bps"
	share     = "percentunit"
)

// one returns a panel of one query.
func one(title, unit, legend, expr string) panel {
	return panel{title, unit, []query{{legend, expr}}}
}

// quantiles returns a panel with the median and the 99th percentile of a histogram, each by labels.
func quantiles(title, histogram, legend string, labels ...string) panel {
	by := strings.Join(append(labels, "le"), ", ")
	p := panel{title: title, unit: seconds}
	for _, q := range []struct{ name, value string }{{"p50", "0.5"}, {"p99", "0.99"}} {
		p.queries = append(p.queries, query{
			strings.TrimSpace(q.name + " " + legend),
			"histogram_quantile(" + q.value + ", sum by (" + by + ") (rate(" + histogram + `_bucket{job=~"$job"}[$window])))`,
		})
	}
	return p
}

func datasource() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("$datasource")}
}

func (b board) build() (dashboard.Dashboard, error) {
	d := dashboard.NewDashboardBuilder(b.title).
		Uid("aviary-"+b.name).
		Tags([]string{"aviary"}).
		Time("now-1h", "now").
		Refresh("30s").
		Readonly().
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")).
		WithVariable(dashboard.NewQueryVariableBuilder("job").Label("Job").
			Datasource(datasource()).
			Query(dashboard.StringOrMap{String: cog.ToPtr("label_values(" + b.jobs + ", job)")}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Multi(true).IncludeAll(true).
			Current(dashboard.VariableOption{Text: text("All"), Value: text("$__all")}))
	alerts := one("Firing alerts", count, "", `count(ALERTS{alertname=~"`+b.alerts+`.*", alertstate="firing"}) or vector(0)`)
	for _, row := range []struct {
		title  string
		panels []panel
	}{
		{"Status", append([]panel{alerts}, b.status...)},
		{"Throughput", b.throughput},
		{"Latency", b.latency},
		{"Backlog", b.backlog},
		{"Errors", b.errors},
		{"Resources", append(b.resources, processes()...)},
	} {
		d.WithRow(dashboard.NewRowBuilder(row.title))
		width := uint32(24 / len(row.panels))
		for _, p := range row.panels {
			if row.title == "Status" {
				d.WithPanel(p.latest(width))
			} else {
				d.WithPanel(p.curves(width))
			}
		}
	}
	return d.Build()
}

func text(s string) dashboard.StringOrArrayOfString {
	return dashboard.StringOrArrayOfString{String: &s}
}

// processes returns the panels that each service has.
func processes() []panel {
	return []panel{
		one("Processors in use", count, "{{instance}}", `rate(process_cpu_seconds_total{job=~"$job"}[$window])`),
		one("Resident memory", bytes, "{{instance}}", `process_resident_memory_bytes{job=~"$job"}`),
		one("Open files", count, "{{instance}}", `process_open_fds{job=~"$job"}`),
	}
}

func (q query) target() *prometheus.DataqueryBuilder {
	expr := strings.ReplaceAll(q.expr, "$window", "$__rate_interval")
	return prometheus.NewDataqueryBuilder().Expr(expr).LegendFormat(q.legend).Range()
}

func (p panel) latest(width uint32) *stat.PanelBuilder {
	b := stat.NewPanelBuilder().Title(p.title).Unit(p.unit).Datasource(datasource()).Height(4).Span(width).
		GraphMode(common.BigValueGraphModeArea).ColorMode(common.BigValueColorModeNone)
	for _, q := range p.queries {
		b.WithTarget(q.target())
	}
	return b
}

func (p panel) curves(width uint32) *timeseries.PanelBuilder {
	b := timeseries.NewPanelBuilder().Title(p.title).Unit(p.unit).Datasource(datasource()).Height(8).Span(width).Min(0)
	for _, q := range p.queries {
		b.WithTarget(q.target())
	}
	return b
}
