//go:build apiserver

package helm

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	startTimeout = 5 * time.Minute
	token        = "test" // of this server, which listens on 127.0.0.1 and lives as long as the test
)

// apiServer is Kubernetes' own API server over an etcd, without controllers and nodes.
type apiServer struct {
	url    string
	client *http.Client
}

// startAPIServer starts both, of the programs that `make helm-apply` builds.
func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	dir := t.TempDir()
	etcd, peers, port := freePort(t), freePort(t), freePort(t)
	start(t, dir, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers, "--initial-cluster", "default=http://"+peers)

	tokens := filepath.Join(dir, "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600))
	key := filepath.Join(dir, "accounts.key")
	out, err := exec.CommandContext(t.Context(), "openssl", "genrsa", "-out", key, "2048").CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, number, err := net.SplitHostPort(port)
	require.NoError(t, err)
	start(t, dir, "kube-apiserver", "--etcd-servers", "http://"+etcd, "--bind-address", "127.0.0.1", "--secure-port", number,
		"--cert-dir", dir, "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC", "--token-auth-file", tokens,
		"--service-account-issuer", "https://localhost", "--service-account-signing-key-file", key, "--service-account-key-file", key,
		"--disable-admission-plugins", "ServiceAccount") // nothing here makes accounts for namespaces

	server := &apiServer{url: "https://" + port, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the server makes its certificate at the start
	}}}
	require.Eventually(t, func() bool {
		status, _, err := server.do(t.Context(), http.MethodGet, "/readyz", nil)
		return err == nil && status == http.StatusOK
	}, startTimeout, 100*time.Millisecond, "see %s", dir)
	return server
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// start starts a program that dies with the test.
func start(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	logs, err := os.Create(filepath.Join(dir, program+".log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(os.Getenv("AVIARY_KUBERNETES"), program), args...)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(logs.Name())
			t.Logf("%s: …%s", program, text[max(0, len(text)-4096):])
		}
	})
}

// do asks the server; objects are sent as YAML.
func (s *apiServer) do(ctx context.Context, method, path string, body object) (int, object, error) {
	text, err := yaml.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/yaml")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	var answer object
	if resp.Header.Get("Content-Type") == "application/json" {
		err = yaml.Unmarshal(data, &answer)
	}
	return resp.StatusCode, answer, err
}

// must is do where an answer other than 2xx ends the test.
func (s *apiServer) must(t *testing.T, method, path string, body object) object {
	t.Helper()
	status, answer, err := s.do(t.Context(), method, path, body)
	require.NoError(t, err)
	require.Equal(t, 2, status/100, "%s %s: %v", method, path, answer.at("message"))
	return answer
}

// pathOf is where the server has an object.
func pathOf(o object) string {
	api, plural := "apis/"+o.text("apiVersion"), map[string]string{
		"ConfigMap": "configmaps", "Deployment": "deployments", "HorizontalPodAutoscaler": "horizontalpodautoscalers",
		"Job":           "jobs",
		"NetworkPolicy": "networkpolicies", "PodDisruptionBudget": "poddisruptionbudgets", "PrometheusRule": "prometheusrules",
		"Service": "services", "ServiceMonitor": "servicemonitors", "StatefulSet": "statefulsets",
	}[o.text("kind")]
	if o.text("apiVersion") == "v1" {
		api = "api/v1"
	}
	return fmt.Sprintf("/%s/namespaces/%s/%s/%s", api, space, plural, o.text("metadata", "name"))
}
