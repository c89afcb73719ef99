package zones

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// repairZones makes zones equal that differ in what they have of the lost one.
func (w *fixture) repairZones(rest []*zone) {
	w.t.Helper()
	lost := w.zones[first].name
	has, most := map[*zone]wire.ID{}, wire.ID{}
	for _, z := range rest {
		has[z] = w.cursor(z, lost)
		most = wire.Max(most, has[z])
		w.say("zone %s: GET /zones: has zone %s up to %s", z.name, lost, has[z])
	}
	for _, z := range rest {
		if has[z] != most {
			w.say("zone %s: redis-cli FCALL sonic_cursors 1 '{sonic:0}out' %s %s '' 0", z.name, lost, most)
			require.NoError(w.t, z.direct.Do(w.t.Context(), "FCALL", "sonic_cursors", 1, "{sonic:0}out", lost, most.String(), "", 0).Err())
		}
	}
	out, err := w.runSonic(second, w.peers(2, 3), "-repair")
	w.say("%s", lastLines(out, err))
	w.addMissing(rest)
	out, err = w.runSonic(second, w.peers(2, 3), "-check")
	w.say("%s", lastLines(out, err))
	require.NoError(w.t, err, "%s", out)
}

// cursor is up to where a zone has another one's effects.
func (w *fixture) cursor(z *zone, origin string) (id wire.ID) {
	w.t.Helper()
	_, body := z.sonic.Ask(http.MethodGet, "/zones")
	var status sonic.Zones
	require.NoError(w.t, json.Unmarshal(body, &status))
	for _, o := range status.Origins {
		if o.Zone == origin {
			var err error
			id, err = wire.ParseID(o.Cursor)
			require.NoError(w.t, err)
		}
	}
	return id
}

// addMissing adds to each counter what a zone lacks, which -repair only lists: zones share the
// changes of counters, and these only grow.
func (w *fixture) addMissing(rest []*zone) {
	w.t.Helper()
	for i := range counters {
		key, values, most := fmt.Sprintf("count:%d", i), map[*zone]int64{}, int64(0)
		for _, z := range rest {
			var err error
			values[z], err = z.direct.Get(w.t.Context(), key).Int64()
			require.NoError(w.t, err)
			most = max(most, values[z])
		}
		for _, z := range rest {
			if by := most - values[z]; by > 0 {
				w.say("zone %s: redis-cli INCRBY %s %d", z.name, key, by)
				require.NoError(w.t, z.direct.IncrBy(w.t.Context(), key, by).Err())
			}
		}
	}
}
