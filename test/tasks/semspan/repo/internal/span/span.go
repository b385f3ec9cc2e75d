// Package span says which versions are meant by texts such as "^1.2 || >=3".
package span

import (
	"fmt"
	"regexp"
	"strings"

	"example.org/semspan/internal/version"
)

// Span holds when all conditions of one of its groups hold.
type Span struct {
	groups [][]condition
}

type condition func(version.Version) bool

var term = regexp.MustCompile(`^(\^|~|>=|<=|>|<)?(\d+)(?:\.(\d+))?(?:\.(\d+(?:-[0-9A-Za-z.-]+)?))?$`)

// Parse reads a span.
func Parse(text string) (Span, error) {
	var span Span
	for _, part := range strings.Split(text, "||") {
		words := strings.Fields(part)
		if len(words) == 0 {
			return Span{}, fmt.Errorf("%q has an empty part", text)
		}
		var group []condition
		for _, word := range words {
			condition, err := parseTerm(word)
			if err != nil {
				return Span{}, err
			}
			group = append(group, condition)
		}
		span.groups = append(span.groups, group)
	}
	return span, nil
}

// Holds says whether v lies in the span.
func (s Span) Holds(v version.Version) bool {
	for _, group := range s.groups {
		if holdsAll(group, v) {
			return true
		}
	}
	return false
}

func holdsAll(group []condition, v version.Version) bool {
	for _, condition := range group {
		if !condition(v) {
			return false
		}
	}
	return true
}

func parseTerm(word string) (condition, error) {
	found := term.FindStringSubmatch(word)
	if found == nil {
		return nil, fmt.Errorf("%q is no condition", word)
	}
	for i := 3; i <= 4; i++ {
		if found[i] == "" {
			found[i] = "0"
		}
	}
	low, err := version.Parse(found[2] + "." + found[3] + "." + found[4])
	if err != nil {
		return nil, err
	}
	switch found[1] {
	case ">=":
		return func(v version.Version) bool { return version.Compare(v, low) >= 0 }, nil
	case "<=":
		return func(v version.Version) bool { return version.Compare(v, low) <= 0 }, nil
	case ">":
		return func(v version.Version) bool { return version.Compare(v, low) > 0 }, nil
	case "<":
		return func(v version.Version) bool { return version.Compare(v, low) < 0 }, nil
	case "^":
		return within(low, nextBreaking(low)), nil
	case "~":
		return within(low, version.Version{Major: low.Major, Minor: low.Minor + 1}), nil
	}
	return func(v version.Version) bool { return version.Compare(v, low) == 0 }, nil
}

// nextBreaking is the first version that may break what works with v.
func nextBreaking(v version.Version) version.Version {
	switch {
	case v.Major > 0:
		return version.Version{Major: v.Major + 1}
	case v.Minor > 0:
		return version.Version{Minor: v.Minor + 1}
	}
	return version.Version{Patch: v.Patch + 1}
}

// within leaves out the pre-releases of end, which come before it but belong to it.
func within(low, end version.Version) condition {
	return func(v version.Version) bool {
		core := version.Version{Major: v.Major, Minor: v.Minor, Patch: v.Patch}
		return version.Compare(v, low) >= 0 && version.Compare(core, end) < 0
	}
}
