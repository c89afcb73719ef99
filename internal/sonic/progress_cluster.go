package sonic

import (
	"math"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clusterApplier says how far a zone with a Redis Cluster and another zone are. See
// [apply.ClusterApplier].
type clusterApplier interface {
	Reached() uint64
	OtherReached() map[string]uint64
}

// clusterProgress says how far the zones are, as a zone with a Redis Cluster knows it.
type clusterProgress struct {
	zone   string
	others map[string]clusterApplier // by zone
}

// reached returns, for each other zone, the time in milliseconds up to which this zone has applied
// all of its effects.
func (p clusterProgress) reached() map[string]uint64 {
	all := map[string]uint64{}
	for zone, a := range p.others {
		all[zone] = a.Reached()
	}
	return all
}

// horizonMargin is how long versions are kept that no zone needs. A primary that was restarted, or has
// taken over, gets effects again that are behind its marker, which is written once a second.
const horizonMargin = time.Minute

// horizon returns the id before which all zones have all effects of all zones, less horizonMargin. It
// is zero while that of a zone is not known.
func (p clusterProgress) horizon() wire.ID {
	least := uint64(math.MaxUint64)
	for zone, a := range p.others {
		other := a.OtherReached()
		least = min(least, a.Reached(), other[p.zone])
		for third := range p.others {
			if third != zone {
				least = min(least, other[third])
			}
		}
	}
	margin := uint64(horizonMargin.Milliseconds())
	if len(p.others) == 0 || least <= margin {
		return wire.ID{}
	}
	return wire.ID{Ms: least - margin}
}
