// Package containers builds the images of deployments/docker, looks into them, and runs the
// services in containers. It has tests only.
package containers

import (
	"bytes"
	"crypto/x509"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems/remotewrite"
)

const (
	version = "1.2.3-test"
	commit  = "0123456789abcdef0123456789abcdef01234567"
	user    = 65532
)

// expected is what each image has to be.
var expected = []struct {
	service string
	title   string
	env     []string
	ports   []string
}{
	{"nightingale", "Nightingale", []string{
		"NIGHTINGALE_HTTP_LISTEN=0.0.0.0:9201", "NIGHTINGALE_ADMIN_LISTEN=0.0.0.0:9202", "NIGHTINGALE_LOG_FORMAT=json",
	}, []string{"9201", "9202"}},
	{"pigeonhole", "Pigeonhole", []string{"PIGEONHOLE_ADMIN_LISTEN=0.0.0.0:9302", "PIGEONHOLE_LOG_FORMAT=json"}, []string{"9302"}},
	{"sonic", "Sonic", []string{"SONIC_LISTEN=0.0.0.0:6380", "SONIC_ADMIN_LISTEN=0.0.0.0:9303", "SONIC_LOG_FORMAT=json"}, []string{"6380", "9303"}},
	{"eventbridge", "Eventbridge", []string{
		"EVENTBRIDGE_HTTP_LISTEN=0.0.0.0:9601", "EVENTBRIDGE_ADMIN_LISTEN=0.0.0.0:9602", "EVENTBRIDGE_LOG_FORMAT=json",
	}, []string{"9601", "9602"}},
}

func TestImages(t *testing.T) {
	b := newBuilder(t)
	b.output(t, "make", "image", "TOOL=buildah", "VERSION="+version, "COMMIT="+commit)
	t.Run("look", func(t *testing.T) {
		for _, want := range expected {
			t.Run(want.service, func(t *testing.T) {
				t.Parallel()
				img := b.inspect(t, "aviary/"+want.service+":"+version)
				assert.Equal(t, fmt.Sprintf("%d:%d", user, user), img.User)
				assert.Equal(t, []string{"/" + want.service}, img.Entrypoint)
				assert.Empty(t, img.Cmd)
				assert.Empty(t, img.Volumes)
				for _, variable := range want.env {
					assert.Contains(t, img.Env, variable)
				}
				assert.Len(t, img.ExposedPorts, len(want.ports))
				for _, port := range want.ports {
					assert.Contains(t, img.ExposedPorts, port+"/tcp")
				}
				assert.Equal(t, want.title, img.Labels["org.opencontainers.image.title"])
				assert.NotEmpty(t, img.Labels["org.opencontainers.image.description"])
				assert.Equal(t, version, img.Labels["org.opencontainers.image.version"])
				assert.Equal(t, commit, img.Labels["org.opencontainers.image.revision"])

				root := b.container(t, "aviary/"+want.service+":"+version, want.service)
				checkFiles(t, root, want.service)
				assert.Equal(t, fmt.Sprintf("%s version %s, commit %s, %s", want.service, version, commit, runtime.Version()),
					b.output(t, "buildah", "run", want.service, "--", "/"+want.service, "-version"))
				assert.Contains(t, b.output(t, "buildah", "run", want.service, "--", "/"+want.service, "-config.print"), "0.0.0.0:"+want.ports[0])
			})
		}
	})
	if !t.Failed() {
		t.Run("run", func(t *testing.T) { runAll(t, b) })
	}
}

func TestCompilesWithTheGoOfTheModule(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	require.NoError(t, err)
	dockerfile, err := os.ReadFile("../../../deployments/docker/Dockerfile")
	require.NoError(t, err)
	goVersion := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	require.NotNil(t, goVersion)
	assert.Contains(t, string(dockerfile), "golang:"+string(goVersion[1])+"-bookworm")
}

// checkFiles sees that an image has the service, the authorities of TLS and nothing else, and that
// nobody but root may change them.
func checkFiles(t *testing.T, root, service string) {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		assert.True(t, d.IsDir() || d.Type().IsRegular(), "%s is %s", path, info.Mode())
		assert.Zero(t, info.Mode()&(0o022|fs.ModeSetuid|fs.ModeSetgid), "%s is %s", path, info.Mode())
		assert.Equal(t, os.Geteuid(), int(info.Sys().(*syscall.Stat_t).Uid), path)
		files = append(files, strings.TrimPrefix(path, root))
		return nil
	}))
	assert.ElementsMatch(t, []string{"/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/ssl/certs/ca-certificates.crt", "/" + service}, files)

	pem, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	require.NoError(t, err)
	assert.True(t, x509.NewCertPool().AppendCertsFromPEM(pem))
	binary, err := elf.Open(filepath.Join(root, service))
	require.NoError(t, err)
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, libraries)
	for _, p := range binary.Progs {
		assert.NotEqual(t, elf.PT_INTERP, p.Type, "a static binary has no loader")
	}
}

// runAll runs the four services beside one another, has data pass each, and stops them.
func runAll(t *testing.T, b *builder) {
	t.Helper()
	pulsar, cache := stack.Pulsar(t), stack.PrivateRedis(t)
	ns := pulsar.Namespace(t)
	url, samples, copied := pulsar.URL(), "persistent://"+ns+"/samples", "persistent://"+ns+"/copied"
	nightingale := b.run(t, "nightingale", fmt.Sprintf("pulsar: {url: %q}\ntopic: %s\n", url, samples),
		"NIGHTINGALE_HTTP_LISTEN=127.0.0.1:0", "NIGHTINGALE_ADMIN_LISTEN=127.0.0.1:0")
	// The image has no files of time zones: the service must have them itself.
	pigeonhole := b.run(t, "pigeonhole", fmt.Sprintf(`
routes:
  - name: copy
    source: {pulsar: {url: %q, topics: [%q], subscription: copy}}
    sink: {pulsar: {url: %q}}
    filter: "timestamp('2026-07-01T10:00:00Z').getHours('Europe/Berlin') == 12"
    to: %s
`, url, samples, url, copied), "PIGEONHOLE_ADMIN_LISTEN=127.0.0.1:0")
	sonic := b.run(t, "sonic", fmt.Sprintf("redis: {url: %q}\npulsar: {url: %q}\ntopic: persistent://%s/sonic\n", cache.URL(), url, ns),
		"SONIC_LISTEN=127.0.0.1:0", "SONIC_ADMIN_LISTEN=127.0.0.1:0")
	eventbridge := b.run(t, "eventbridge", fmt.Sprintf("pulsar: {url: %q}\ntopics: {namespace: %s}\n", url, ns),
		"EVENTBRIDGE_HTTP_LISTEN=127.0.0.1:0", "EVENTBRIDGE_ADMIN_LISTEN=127.0.0.1:0")
	services := []*service{nightingale, pigeonhole, sonic, eventbridge}
	for _, s := range services {
		s.awaitReady()
		s.checkProcess()
		s.t.Log(b.output(t, "buildah", "run", "--env", strings.ToUpper(s.name)+"_ADMIN_LISTEN="+s.address("admin"), s.name, "--", "/"+s.name, "-ready"))
	}

	written, err := remotewrite.Send(t.Context(), "http://"+nightingale.address("http")+"/api/v1/write", &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels:  []prompb.Label{{Name: "__name__", Value: "up"}},
		Samples: []prompb.Sample{{Value: 1, Timestamp: time.Now().UnixMilli()}},
	}}}, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, written.Status, written.Text)
	assert.Eventually(t, func() bool {
		var topics []string
		require.NoError(t, pulsar.Admin(t.Context(), http.MethodGet, "/admin/v2/persistent/"+ns, nil, &topics))
		for _, topic := range topics {
			if topic == copied {
				return pulsar.Stats(t, copied).MsgInCounter == 1
			}
		}
		return false
	}, await.Patience, 10*time.Millisecond, "%s", pigeonhole)

	client := redis.NewClient(&redis.Options{Addr: sonic.address("redis")})
	defer client.Close()
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())
	assert.Equal(t, "v", client.Get(t.Context(), "k").Val())

	status, answer := ask(t, http.MethodPut, "http://"+eventbridge.address("http")+"/v1/buses/orders", []byte("{}"),
		map[string]string{"Content-Type": "application/json"})
	assert.Equal(t, http.StatusCreated, status, answer)
	for _, s := range services {
		s.checkProcess()
		s.stop()
		assert.Contains(t, s.text(), `"msg":"stopped"`)
	}
}

func ask(t *testing.T, method, url string, body []byte, header map[string]string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	for key, value := range header {
		req.Header.Set(key, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// address is where the service listens for the server of that name.
func (s *service) address(server string) (address string) {
	s.t.Helper()
	pattern := regexp.MustCompile(`"msg":"listening"[^\n]*"server":"` + server + `"[^\n]*"address":"([^"]+)"`)
	require.Eventually(s.t, func() bool {
		if found := pattern.FindStringSubmatch(s.text()); found != nil {
			address = found[1]
		}
		return address != ""
	}, await.Patience, 10*time.Millisecond, "%s", s)
	return address
}

func (s *service) awaitReady() {
	s.t.Helper()
	ready := "http://" + s.address("admin") + "/-/ready"
	require.Eventually(s.t, func() bool {
		status, _ := ask(s.t, http.MethodGet, ready, nil, nil)
		return status == http.StatusOK
	}, await.Patience, 10*time.Millisecond, "%s", s)
}

// checkProcess sees that the service runs as the image's user, without capabilities, and has opened
// no file to write.
func (s *service) checkProcess() {
	s.t.Helper()
	proc := "/proc/" + strconv.Itoa(s.pid)
	status, err := os.ReadFile(proc + "/status")
	require.NoError(s.t, err)
	if os.Geteuid() == 0 { // else the ids are those of the user's range
		for _, kind := range []string{"Uid", "Gid"} {
			assert.Regexp(s.t, fmt.Sprintf(`(?m)^%s:\t%d\t%d\t%d\t%d$`, kind, user, user, user, user), string(status))
		}
	}
	assert.Regexp(s.t, `(?m)^CapEff:\t0+$`, string(status))
	files, err := os.ReadDir(proc + "/fd")
	require.NoError(s.t, err)
	for _, file := range files {
		target, err := os.Readlink(filepath.Join(proc, "fd", file.Name()))
		if err != nil || !strings.HasPrefix(target, "/") || target == s.log || target == "/dev/null" {
			continue // closed meanwhile, or a socket or the like
		}
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", file.Name()))
		if err != nil {
			continue
		}
		var flags int
		for line := range strings.Lines(string(info)) {
			if text, found := strings.CutPrefix(line, "flags:"); found {
				_, err = fmt.Sscanf(text, "%o", &flags)
				require.NoError(s.t, err)
			}
		}
		assert.Equal(s.t, os.O_RDONLY, flags&syscall.O_ACCMODE, "%s has %s open", s.name, target)
	}
}
