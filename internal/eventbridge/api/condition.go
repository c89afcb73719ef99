package api

import (
	"net/http"
	"strconv"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// etag is the ETag of a revision.
func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// condition reads If-Match, which is * or one ETag, and If-None-Match, which is *.
func condition(r *http.Request) (c store.Condition, err error) {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	switch {
	case len(match)+len(none) == 0:
	case len(match)+len(none) > 1:
		return c, refused(http.StatusBadRequest, "give only one If-Match or If-None-Match")
	case len(none) == 1:
		if c.New = none[0] == "*"; !c.New {
			return c, refused(http.StatusBadRequest, "If-None-Match must be *")
		}
	case match[0] == "*":
		c.Exists = true
	default:
		text, _ := strconv.Unquote(match[0])
		c.Revision, err = strconv.ParseInt(text, 10, 64)
		if err != nil || c.Revision < 1 || etag(c.Revision) != match[0] {
			return c, refused(http.StatusBadRequest, `If-Match must be * or the one ETag that this API gave, such as "17"`)
		}
	}
	return c, nil
}

// refuseConditions refuses If-Match and If-None-Match: jobs have no revision to compare.
func refuseConditions(r *http.Request) error {
	if len(r.Header.Values("If-Match"))+len(r.Header.Values("If-None-Match")) > 0 {
		return refused(http.StatusBadRequest, "this request takes neither If-Match nor If-None-Match: jobs have no revision")
	}
	return nil
}
