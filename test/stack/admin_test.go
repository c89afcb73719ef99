package stack

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

// TestAdminAsksAgainWhileTheBookieIsAvoided: the answer of a broker that has just started on a busy
// machine.
func TestAdminAsksAgainWhileTheBookieIsAvoided(t *testing.T) {
	const avoided = `{"reason":"\n --- An unexpected error occurred in the server ---\n\nMessage: ` +
		`org.apache.bookkeeper.mledger.ManagedLedgerException: Not enough non-faulty bookies available error code: -6"}`
	type answer struct {
		status int
		body   string
	}
	for name, c := range map[string]struct {
		answers []answer // the last one stands for all that follow
		want    int      // status of the error; 0 for none
		asked   int
	}{
		"then created":        {[]answer{{500, avoided}, {500, avoided}, {204, ""}}, 0, 3},
		"then exists already": {[]answer{{500, avoided}, {409, "exists"}}, 0, 2},
		"existed before":      {[]answer{{409, "exists"}}, 409, 1},
		"another fault":       {[]answer{{500, "out of memory"}}, 500, 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if string(body) != "3" {
					t.Errorf("request %d carries %q", asked, body)
				}
				next := c.answers[min(asked, len(c.answers)-1)]
				asked++
				w.WriteHeader(next.status)
				_, _ = io.WriteString(w, next.body)
			}))
			defer srv.Close()
			err := pulsaradmin.New(srv.URL, "").CreateTopic(t.Context(), "persistent://public/default/x", 3)
			require.Equal(t, c.asked, asked)
			if c.want == 0 {
				require.NoError(t, err)
			} else {
				require.True(t, pulsaradmin.IsStatus(err, c.want), "%v", err)
			}
		})
	}
	t.Run("for ever", func(t *testing.T) {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, avoided)
		}))
		defer srv.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, pulsaradmin.New(srv.URL, "").CreateTopic(ctx, "persistent://public/default/x", 0), "non-faulty")
	})
}
