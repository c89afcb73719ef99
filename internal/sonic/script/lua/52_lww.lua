
-- The fold of effects under lww. What it keeps, and why that suffices, is said in 50_versions.lua.
--
-- Each function that applies an effect returns what became of it: 'applied', 'lost' to a newer version,
-- 'dead' when its key expired since.
local lww = {}

local function store(...)
	select_db('0')
	call('HSET', c.ver, ...)
end

local function store_list(versions)
	if #versions == 0 then return end
	select_db('0')
	sliced('HSET', c.ver, versions, 1, #versions)
end

-- passed tells whether the time of the key's expiry has come.
local function passed(f)
	local _, at = version.expiry(f)
	return at ~= nil and at <= c.clock
end

-- dead tells whether an expiry wiped what was written at v.
local function dead(f, v)
	if f.cleared and v.ms < f.cleared then return true end
	local said, at = version.expiry(f)
	return at ~= nil and at <= c.clock and (v.ms < at or not before(said, v))
end

-- has_passed tells whether the time at of the key's expiry has come, here where it is known that the key would be
-- missing then. PEXPIREAT with a time that has come removes the key at once: the call may have
-- begun before.
local function has_passed(db, key, at)
	if at > c.clock then
		select_db(db)
		if call('EXISTS', key) == 0 then c.clock = math.max(c.clock, wall_clock()) end
	end
	return at <= c.clock
end

-- facts reads what is known of a key.
local function facts(db, key)
	select_db('0')
	return version.facts(c.ver, db, key)
end

-- facts_to_change reads what is known of a key that an effect may change. A key whose expiry has come by the stream's
-- clock, and not yet by Redis' own, goes now: all in it is dead, see 50_versions.lua.
local function facts_to_change(db, key)
	local f = facts(db, key)
	if c.ahead then
		select_db(db)
		local at = call('PEXPIRETIME', key)
		if at >= 0 and at <= c.clock then call('DEL', key) end
	end
	return f
end

-- settle removes from key what the facts say is gone, and sets its expiry. was is the key's KV before this
-- effect: the version of elements that have none of their own, as those of RENAME and of an answer.
local function settle(db, key, f, was)
	c.emptied[#c.emptied + 1], c.emptied[#c.emptied + 2] = db, key
	select_db(db)
	local kind = kind_of(key)
	if kind == 'none' then return end
	local letter = LETTERS[kind]
	local said, at, text = version.expiry(f)
	-- Whoever says that it saw an older expiry pass knew all that is forgotten here, and so did this zone: what it
	-- wiped is gone.
	local cleared = f.cleared and f.cleared > c.pruned.ms
	if not letter then
		-- The content is that of the wholesale write.
		local typed = version.newest_type(f)
		if typed and (not f.whole or before(f.whole, typed)) or passed(f)
			or cleared and (not f.whole or f.whole.ms < f.cleared) then
			call('DEL', key)
			return
		end
	else
		local other = version.newest_type(f, letter)
		if f.whole or other or cleared or passed(f) then
			local list, gone = elements_of(key, letter), {}
			local stored = versions_of(c.ver, db, key, list, 1, 1)
			for i = 1, #list do
				local v = newer(version.known(stored[i]), was)
				if not v then -- older than all that is known, and one of these facts is
					gone[#gone + 1] = list[i]
				elseif f.whole and before(v, f.whole) or dead(f, v)
					or other and not before(other, v) then -- that addition may have been of this very element
					gone[#gone + 1] = list[i]
				end
			end
			select_db(db)
			sliced(ELEMENTS[letter].remove, key, gone, 1, #gone)
			if #gone == #list then return end
		end
	end
	if said then set_expiry(key, (at == nil or at <= c.clock) and '' or text) end
end

-- expiry_stored is what is stored of a statement at v about an expiry.
local function expiry_stored(v, pxat, cleared)
	return v.text .. expiry_text(pxat, cleared and format('%.0f', cleared))
end

-- whole_text is what is stored of a wholesale write at v. base says that the key holds what it made.
local function whole_text(v, pxat, base)
	local text = pxat == '' and v.text or v.text .. ' ' .. pxat
	return base and text .. ' L' or text
end

-- wholesale applies S, R or D at v.
function lww.wholesale(e, v)
	local op, db, key = e[1], e[3], e[4]
	local pxat = op == 'D' and '' or e[6]
	local f = facts_to_change(db, key)
	if f.whole and before(v, f.whole) then return 'lost' end
	local said, at = version.expiry(f)
	local was = f.whole
	f.whole, f.whole_said = v, pxat
	store(key_field(db, key), whole_text(v, pxat))
	local typed = version.newest_type(f)
	if typed and before(v, typed) then
		local replaced = said and before(said, v) and at and has_passed(db, key, at)
		settle(db, key, f, was)
		if replaced then requests.want(db, key, false, f) end
		return 'lost'
	end
	select_db(db)
	if op == 'D' then
		call('DEL', key)
		if f.expiry and before(v, f.expiry) then c.emptied[#c.emptied + 1], c.emptied[#c.emptied + 2] = db, key end
		return 'applied'
	end
	if dead(f, v) then
		call('DEL', key)
		return 'dead'
	end
	local _, _, text = version.expiry(f)
	put(e, v.zone, text)
	if op == 'R' then store(key_field(db, key), whole_text(v, pxat, true)) end
	return 'applied'
end

-- newest_elements returns those of e[6..] for which v is the newest version, with their values, and adds to versions
-- what is stored of them, with rest behind the version; nothing when rest is nil.
local function newest_elements(e, v, kind, versions, rest)
	local stored = versions_of(c.ver, e[3], e[4], e, 5 + kind.at, kind.step)
	local prefix, mine = element_field(e[3], e[4], ''), {}
	local text = rest and v.text .. rest
	for i = 1, #stored do
		local had = version.known(stored[i])
		if not had or not before(v, had) then
			local at = 6 + (i - 1) * kind.step
			for j = at, at + kind.step - 1 do mine[#mine + 1] = e[j] end
			if rest then
				versions[#versions + 1] = prefix .. e[at + kind.at - 1]
				versions[#versions + 1] = text
			end
		end
	end
	return mine
end

-- names_of returns the names of the elements of list.
local function names_of(list, kind)
	local names = {}
	for i = kind.at, #list, kind.step do names[#names + 1] = list[i] end
	return names
end

-- add applies H, A or Z at v: e[6..] are the elements, with values or scores, of the type letter. e[5] is the expiry
-- that the key had at the origin.
function lww.add(e, v, letter)
	local db, key, pxat = e[3], e[4], e[5]
	local f = facts_to_change(db, key)
	if f.whole and before(v, f.whole) then return 'lost' end
	local kind = ELEMENTS[letter]
	local versions = {}
	local anew = f.whole and same(f.whole, v) -- behind D: these elements have the key's version
	local says_expiry = false -- and say when the key expires: newer elements that are there expire, too
	if anew then
		if pxat ~= '' and not (f.expiry and not before(f.expiry, v)) then -- else the first of several effects has said it
			says_expiry = true
			f.expiry, f.said = v, pxat
			versions[1], versions[2] = expiry_field(db, key), expiry_stored(v, pxat, f.cleared)
		end
	elseif not f.types[letter] or before(f.types[letter], v) then
		f.types[letter] = v
		versions[1], versions[2] = type_field(db, key, letter), v.text
	end
	local other = version.newest_type(f, letter)
	if other and before(v, other) then
		-- A newer addition of another type wiped these. They wiped that type's elements before them. Of elements that
		-- are in both, what is stored from now on is newer than what these wiped: settle would keep them.
		local names = names_of(newest_elements(e, v, kind, versions, ''), kind)
		store_list(versions)
		select_db(db)
		local there = LETTERS[kind_of(key)]
		if there then sliced(ELEMENTS[there].remove, key, names, 1, #names) end
		settle(db, key, f, f.whole)
		return 'lost'
	end
	local said, at, text = version.expiry(f)
	local expired = at ~= nil and at <= c.clock
	local carried = tonumber(pxat)
	local gone = dead(f, v) or carried and carried <= v.ms
	select_db(db)
	local there = kind_of(key)
	if there ~= 'none' and there ~= kind.kind then -- all of it is wiped
		call('DEL', key)
		there = 'none'
	end
	if gone then
		local names = names_of(newest_elements(e, v, kind, versions, ' -'), kind)
		store_list(versions)
		select_db(db)
		if there ~= 'none' then sliced(kind.remove, key, names, 1, #names) end
		c.emptied[#c.emptied + 1], c.emptied[#c.emptied + 2] = db, key
		if says_expiry then settle(db, key, f, f.whole) end
		return 'dead'
	end
	local mine = newest_elements(e, v, kind, versions, not anew and '' or nil)
	store_list(versions)
	if #mine == 0 then
		if says_expiry then settle(db, key, f, f.whole) end
		return 'lost'
	end
	select_db(db)
	sliced(kind.add, key, mine, 1, #mine)
	if said then
		if at and not expired then call('PEXPIREAT', key, text) end
	elseif carried then
		requests.want(db, key, false, f)
	end
	return 'applied'
end

-- remove applies h, a or z at v to the elements e[6..].
function lww.remove(e, v)
	local db, key = e[3], e[4]
	local f = facts_to_change(db, key)
	if f.whole and before(v, f.whole) then return 'lost' end
	local versions = {}
	local mine = newest_elements(e, v, ELEMENTS.s, versions, ' -')
	if #mine == 0 then return 'lost' end
	store_list(versions)
	select_db(db)
	local letter = LETTERS[kind_of(key)]
	if letter then
		sliced(ELEMENTS[letter].remove, key, mine, 1, #mine)
		c.emptied[#c.emptied + 1], c.emptied[#c.emptied + 2] = db, key
	end
	return 'applied'
end

-- expire applies E at v. e[6] is W, nil when the writer saw no expiry pass.
function lww.expire(e, v)
	local db, key, pxat, cleared = e[3], e[4], e[5], tonumber(e[6])
	local f = facts_to_change(db, key)
	if f.whole and before(v, f.whole) then return 'lost' end
	local said, at, text = version.expiry(f)
	local more = cleared and (not f.cleared or f.cleared < cleared)
	if more then f.cleared = cleared end
	if said and before(v, said) then
		if more then
			store(expiry_field(db, key), expiry_stored(said, text, f.cleared))
			settle(db, key, f, f.whole)
		end
		return 'lost'
	end
	f.expiry, f.said = v, pxat
	store(expiry_field(db, key), expiry_stored(v, pxat, f.cleared))
	local now_at, over = tonumber(pxat), at and has_passed(db, key, at)
	local comes = now_at == nil or now_at > c.clock
	local typed = version.newest_type(f)
	local needs = c.recovers and not cleared
		or over and (not cleared or cleared < at) and not same(said, v) and (comes or typed and before(v, typed))
	select_db(db)
	if call('EXISTS', key) == 0 then
		if needs or comes and (now_at or not said) then requests.want(db, key, false, f) end
		return comes and 'applied' or 'dead'
	end
	if more or not comes then
		settle(db, key, f, f.whole)
	else
		set_expiry(key, pxat)
	end
	if needs then requests.want(db, key, false, f) end
	return comes and 'applied' or 'dead'
end

-- lost_expiry asks for the state of the keys that were emptied while an expiry is still to come. It is called behind
-- an entry's effects, whose last one may be of another policy. An answer to a question of policy none is for the
-- asker alone, and here it has a version, which the others would lack.
function lww.lost_expiry()
	local list = c.emptied
	if #list == 0 then return end
	c.emptied = {}
	for i = 1, #list, 2 do
		local db, key = list[i], list[i + 1]
		local f = facts(db, key)
		local _, at = version.expiry(f)
		if at and at > c.clock then
			select_db(db)
			if call('EXISTS', key) == 0 then requests.want(db, key, false, f, 'l') end
		end
	end
end
