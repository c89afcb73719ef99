package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

const buildTimeout = 10 * time.Minute // with a module cache that is empty

// A builder makes images and containers in a storage of its own, which goes with the test.
type builder struct {
	t    *testing.T
	root string // of the checkout
	dir  string
	env  []string
}

func newBuilder(t *testing.T) *builder {
	t.Helper()
	stack.Buildah(t)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	dir := t.TempDir()
	b := &builder{t: t, root: root, dir: dir}
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(dir, "images"), filepath.Join(dir, "run"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "storage.conf"), []byte(storage), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	b.env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+filepath.Join(dir, "storage.conf"), "BUILDAH_ISOLATION=chroot", "TMPDIR="+filepath.Join(dir, "tmp"))
	t.Cleanup(func() {
		out, err := b.command(context.Background(), "rm", "-rf", dir).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	})
	return b
}

// command runs a program as root, or as what a user's namespace has for it.
func (b *builder) command(ctx context.Context, argv ...string) *exec.Cmd {
	if os.Geteuid() != 0 {
		argv = append([]string{"buildah", "unshare"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.root, b.env
	return cmd
}

// output is what a program writes.
func (b *builder) output(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	cmd := b.command(ctx, argv...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	require.NoError(t, err, "%v: %s\n%s", argv, errors.Bytes(), out)
	return strings.TrimSpace(string(out))
}

// image is what a runtime gets to know about an image.
type image struct {
	User         string
	Env          []string
	Entrypoint   []string
	Cmd          []string
	ExposedPorts map[string]struct{}
	Labels       map[string]string
	Volumes      map[string]struct{}
}

func (b *builder) inspect(t *testing.T, name string) image {
	t.Helper()
	var all struct {
		OCIv1 struct {
			Architecture string
			Config       image
		}
	}
	require.NoError(t, json.Unmarshal([]byte(b.output(t, "buildah", "inspect", "--type", "image", name)), &all))
	return all.OCIv1.Config
}

// container makes a container of an image and returns the folder that its root file system is.
func (b *builder) container(t *testing.T, image, name string) (root string) {
	t.Helper()
	b.output(t, "buildah", "from", "--pull-never", "--name", name, image)
	return b.output(t, "buildah", "mount", name) // vfs: a folder, nothing is mounted
}

// A service runs in a container.
type service struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan error
	log  string
	pid  int // of the service itself
}

// run runs the entry point of an image in a container of that name, with the configuration given.
func (b *builder) run(t *testing.T, name, config string, env ...string) *service {
	t.Helper()
	file := filepath.Join(b.dir, name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	argv := []string{"buildah", "run", "--volume", file + ":/etc/aviary/" + name + ".yaml:ro"}
	for _, variable := range env {
		argv = append(argv, "--env", variable)
	}
	s := &service{t: t, name: name, done: make(chan error, 1), log: filepath.Join(b.dir, name+".log")}
	s.cmd = b.command(context.Background(), append(argv, name, "--", "/"+name, "-config.file", "/etc/aviary/"+name+".yaml")...)
	log, err := os.Create(s.log)
	require.NoError(t, err)
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(t, s.cmd.Start())
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() {
		if s.cmd != nil {
			for _, pid := range descendants(s.cmd.Process.Pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_ = s.cmd.Process.Kill()
			<-s.done
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, s.text())
		}
	})
	require.Eventually(t, func() bool {
		for _, pid := range descendants(s.cmd.Process.Pid) {
			comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
			if strings.TrimSpace(string(comm)) == name {
				s.pid = pid
			}
		}
		return s.pid != 0
	}, await.Patience, 10*time.Millisecond, "%s", s)
	return s
}

func (s *service) text() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// String is for messages about failures: what the service has written until then.
func (s *service) String() string { return s.text() }

// stop asks the service to end, which has to end in order.
func (s *service) stop() {
	s.t.Helper()
	require.NoError(s.t, syscall.Kill(s.pid, syscall.SIGTERM))
	select {
	case err := <-s.done:
		s.cmd = nil
		require.NoError(s.t, err, "%s", s)
	case <-time.After(await.Patience):
		require.Fail(s.t, "does not end", "%s", s)
	}
}

func descendants(pid int) []int {
	var all []int
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}
