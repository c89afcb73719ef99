// Package helm checks deployments/helm: it renders the chart with Helm's own library, has
// Kubernetes' schemas and the services themselves check the result, and holds what
// docs/deployments.md promises of it. It is a module of its own, so that Helm and Kubernetes are
// not in the product's go.mod. `make helm-check` runs it. It has tests only.
package helm

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	root     = "../../.."
	folder   = root + "/deployments/helm"
	chart    = folder + "/aviary"
	examples = folder + "/examples"
	release  = "aviary"
	space    = "shop" // the namespace
)

// TestMain has Helm not write each time that a folder of the chart is a symbolic link.
func TestMain(m *testing.M) {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	os.Exit(m.Run())
}

// object is a rendered object of Kubernetes.
type object map[string]any

func (o object) String() string { return fmt.Sprint(o["kind"], "/", o.at("metadata", "name")) }

// at returns the value at a path, nil where there is none.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// text is at for a string, and number for a number.
func (o object) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func (o object) number(path ...string) float64 {
	n, _ := o.at(path...).(float64)
	return n
}

// list is at for a list of objects.
func (o object) list(path ...string) []object {
	items, _ := o.at(path...).([]any)
	var all []object
	for _, item := range items {
		m, _ := item.(map[string]any)
		all = append(all, m)
	}
	return all
}

// labels is at for a map of strings.
func (o object) labels(path ...string) map[string]string {
	m, _ := o.at(path...).(map[string]any)
	all := map[string]string{}
	for key, value := range m {
		all[key] = fmt.Sprint(value)
	}
	return all
}

// rendered is what Helm would install of a chart with another one as its dependency.
func rendered(path string, values map[string]any, dependencies ...string) ([]object, error) {
	c, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	for _, dependency := range dependencies {
		d, err := loader.Load(dependency)
		if err != nil {
			return nil, err
		}
		c.AddDependency(d)
	}
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: release, Namespace: space, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(context.Background(), c, all)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq(files[name], "\n---\n") {
			var o object
			if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
				return nil, fmt.Errorf("%s: %w in:\n%s", name, err, document)
			}
			if len(o) > 0 {
				objects = append(objects, o)
			}
		}
	}
	return objects, nil
}

// render renders the chart with the values of one text, as -f does with those of a file.
func render(t *testing.T, values string) []object {
	t.Helper()
	objects, err := rendered(chart, parse(t, values))
	require.NoError(t, err)
	return objects
}

// renderShop renders the example of an application with Sonic beside it, as after `helm dependency
// build`.
func renderShop(t *testing.T) []object {
	t.Helper()
	objects, err := rendered(examples+"/shop", nil, chart)
	require.NoError(t, err)
	return objects
}

// parse reads values as Helm does: numbers stay as they are written.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values, err := common.ReadValues([]byte(text))
	require.NoError(t, err)
	return values
}

// each runs a test on what each example renders to.
func each(t *testing.T, test func(t *testing.T, objects []object)) {
	t.Helper()
	files, err := filepath.Glob(examples + "/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 2)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			test(t, render(t, string(text)))
		})
	}
}

func kind(objects []object, kinds ...string) []object {
	return slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return !slices.Contains(kinds, o.text("kind")) })
}

// workloads are the objects that have pods, and must not be none.
func workloads(t *testing.T, objects []object) []object {
	t.Helper()
	all := kind(objects, "Deployment", "StatefulSet")
	require.NotEmpty(t, all)
	return all
}
