// Package version reads and compares versions as Semantic Versioning 2.0.0 has them.
package version

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Version is one version. Build metadata is kept for printing and says nothing about order.
type Version struct {
	Major, Minor, Patch uint64
	Pre                 string
	Build               string
}

var pattern = regexp.MustCompile(
	`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
		`(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?` +
		`(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)

// Parse reads a whole version such as 1.4.0-rc.1+linux.
func Parse(text string) (Version, error) {
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		return Version{}, fmt.Errorf("%q is no version", text)
	}
	var numbers [3]uint64
	for i := range numbers {
		number, err := strconv.ParseUint(found[i+1], 10, 64)
		if err != nil {
			return Version{}, fmt.Errorf("%q is no version: %s is too large", text, found[i+1])
		}
		numbers[i] = number
	}
	return Version{numbers[0], numbers[1], numbers[2], found[4], found[5]}, nil
}

func (v Version) String() string {
	text := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		text += "-" + v.Pre
	}
	if v.Build != "" {
		text += "+" + v.Build
	}
	return text
}

// Compare is negative when a comes before b, positive when it comes after b, and 0 when neither does.
func Compare(a, b Version) int {
	if c := compareNumbers(a.Major, b.Major); c != 0 {
		return c
	}
	if c := compareNumbers(a.Minor, b.Minor); c != 0 {
		return c
	}
	if c := compareNumbers(a.Patch, b.Patch); c != 0 {
		return c
	}
	return comparePre(a.Pre, b.Pre)
}

func compareNumbers(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// comparePre compares what is after the dash; a version without it comes after all that have it.
func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	return strings.Compare(a, b)
}
