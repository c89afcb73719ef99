package deployments

import (
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/test/stack"
)

const composeFolder = root + "/deployments/compose"

// projects returns the files of Compose, as its own library loads them.
func projects(t *testing.T) map[string]*types.Project {
	t.Helper()
	all := map[string]*types.Project{}
	for _, name := range []string{"compose.yaml", "two-zones.yaml"} {
		options, err := cli.NewProjectOptions([]string{filepath.Join(composeFolder, name)}, cli.WithResolvedPaths(true))
		require.NoError(t, err)
		project, err := options.LoadProject(t.Context())
		require.NoError(t, err, name)
		all[name] = project
	}
	return all
}

func TestComposeFiles(t *testing.T) {
	t.Parallel()
	for name, project := range projects(t) {
		t.Run(name, func(t *testing.T) {
			ports, ours := map[string]string{}, map[string]int{}
			for _, service := range project.Services {
				// Names that Docker knows without a registry, of one version.
				assert.Regexp(t, `^([a-z]+/)?[a-z]+:(v?\d+\.\d+\.\d+[a-z-]*|dev)$`, service.Image, service.Name)
				for prefix, version := range map[string]string{"apachepulsar/pulsar:": stack.PulsarVersion, "apache/kafka:": stack.KafkaVersion} {
					if tag, found := strings.CutPrefix(service.Image, prefix); found {
						assert.Equal(t, version, tag, "the version that tests run")
					}
				}
				for _, port := range service.Ports {
					assert.Equal(t, "127.0.0.1", port.HostIP, "%s %s: nothing here asks for a password", service.Name, port.Published)
					assert.Empty(t, ports[port.Published], "%s has port %s, too", service.Name, port.Published)
					ports[port.Published] = service.Name
				}
				for _, volume := range service.Volumes {
					info, err := os.Stat(volume.Source)
					require.NoError(t, err)
					assert.True(t, info.Mode().IsRegular() && volume.ReadOnly, volume.Source)
				}
				if check := service.HealthCheck; check != nil {
					assert.NotRegexp(t, `pulsar-admin|kafka-[a-z]+\.sh`, strings.Join(check.Test, " "), "a JVM every ten seconds takes a processor")
				}
				for dependency, how := range service.DependsOn {
					if how.Condition == types.ServiceConditionHealthy {
						assert.NotNil(t, project.Services[dependency].HealthCheck, "%s waits for %s, which has no health check", service.Name, dependency)
					}
				}
				if binary, _, found := strings.Cut(strings.TrimPrefix(service.Image, "aviary/"), ":"); found && slices.Contains(services, binary) {
					ours[binary]++
					checkService(t, service, binary)
				}
			}
			want := services
			if name == "two-zones.yaml" {
				want = []string{"sonic", "eventbridge"}
			}
			assert.ElementsMatch(t, want, slices.Collect(maps.Keys(ours)))
		})
	}
}

// The context of an image that is compiled has all that compiling needs: what .dockerignore lets in.
// No test builds that image, which needs the image of Go.
func TestImagesCanBeCompiled(t *testing.T) {
	t.Parallel()
	const root = "../.."
	context := t.TempDir()
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if entry, in := strings.CutPrefix(strings.TrimSpace(line), "!"); in {
			said, err := run(t, nil, "cp", "-r", filepath.Join(root, entry), context)
			require.NoError(t, err, said)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "./cmd/...")
	build.Dir, build.Env = context, append(os.Environ(), "CGO_ENABLED=0") // as make build
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
}

// checkService sees that one of our services is built from our Dockerfile, runs a file that it
// accepts, and is asked whether it is ready.
func checkService(t *testing.T, service types.ServiceConfig, binary string) {
	t.Helper()
	require.NotNil(t, service.Build, service.Name)
	_, err := os.Stat(filepath.Join(service.Build.Context, service.Build.Dockerfile))
	assert.NoError(t, err)
	assert.Equal(t, binary, *service.Build.Args["SERVICE"])
	assert.True(t, service.ReadOnly)
	require.NotNil(t, service.StopGracePeriod)
	assert.Greater(t, time.Duration(*service.StopGracePeriod), app.DefaultCommon("").ShutdownTimeout)
	require.NotNil(t, service.HealthCheck)
	assert.Equal(t, types.HealthCheckTest{"CMD", "/" + binary, "-ready"}, service.HealthCheck.Test)

	require.Len(t, service.Command, 2)
	assert.Equal(t, "-config.file", service.Command[0])
	var file string
	for _, volume := range service.Volumes {
		if volume.Target == service.Command[1] {
			file = volume.Source
		}
	}
	require.NotEmpty(t, file, "%s has no %s", service.Name, service.Command[1])
	var env []string
	for key, value := range service.Environment {
		env = append(env, key+"="+*value)
	}
	said, err := run(t, env, filepath.Join(binaries(t), binary), "-config.check", "-config.file", file)
	require.NoError(t, err, said)
	assert.NotContains(t, said, "warning")
	assert.Contains(t, said, "the configuration is valid")
}

func TestComposeScripts(t *testing.T) {
	scripts, err := filepath.Glob(composeFolder + "/init/*.sh")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		said, err := run(t, nil, "sh", "-n", script)
		assert.NoError(t, err, "%s: %s", script, said)
	}
}

func TestPrometheusScrapesWhatThereIs(t *testing.T) {
	text, err := os.ReadFile(composeFolder + "/prometheus.yaml")
	require.NoError(t, err)
	var config struct {
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
		RemoteWrite []struct {
			URL string `yaml:"url"`
		} `yaml:"remote_write"`
	}
	require.NoError(t, yaml.Unmarshal(text, &config))
	admin := map[string]string{"nightingale": "9202", "pigeonhole": "9302", "sonic": "9303", "eventbridge": "9602"}
	project := projects(t)["compose.yaml"]
	for _, job := range config.ScrapeConfigs {
		for _, target := range job.StaticConfigs {
			for _, address := range target.Targets {
				host, port, _ := strings.Cut(address, ":")
				if slices.Contains(services, host) {
					assert.Equal(t, host, job.JobName, "the alerts look for jobs by the names of the services")
					assert.Equal(t, admin[host], port, address)
					delete(admin, host)
				}
				if host != "127.0.0.1" {
					assert.Contains(t, project.Services, host)
				}
			}
		}
	}
	assert.Empty(t, admin, "not scraped")
	require.Len(t, config.RemoteWrite, 1)
	assert.Equal(t, "http://nightingale:9201/api/v1/write", config.RemoteWrite[0].URL)
}

// What the health check of Pulsar asks is there.
func TestPulsarAnswersItsHealthCheck(t *testing.T) {
	srv := stack.Pulsar(t)
	for name, project := range projects(t) {
		checked := 0
		for _, service := range project.Services {
			if !strings.HasPrefix(service.Image, "apachepulsar/") || service.HealthCheck == nil {
				continue
			}
			checked++
			path, found := strings.CutPrefix(service.HealthCheck.Test[len(service.HealthCheck.Test)-1], "http://127.0.0.1:8080")
			require.True(t, found, service.HealthCheck.Test)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.AdminURL()+path, http.NoBody)
			require.NoError(t, err)
			answer, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			assert.Equal(t, http.StatusOK, answer.StatusCode, "%s, %s", name, service.Name)
		}
		assert.Equal(t, 2, checked, name)
	}
}
