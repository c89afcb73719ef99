
-- Consumer groups are of one zone. groups_of returns those of the stream key: of each its name, the id that it was
-- delivered last, how many entries it has read (false when Redis does not know), and what is pending.
local function groups_of(key)
	local groups = {}
	if kind_of(key) ~= 'stream' then return groups end
	for i, info in ipairs(call('XINFO', 'GROUPS', key)) do
		local found, pending, from = by_name(info), {}, '-'
		while true do
			local list = call('XPENDING', key, found.name, from, '+', SLICE)
			for j = 1, #list do pending[#pending + 1] = list[j] end
			if #list < SLICE then break end
			from = '(' .. list[#list][1]
		end
		groups[i] = {found.name, found['last-delivered-id'], found['entries-read'], pending}
	end
	return groups
end

-- set_groups replaces the groups of the stream key, which are its origin's, by groups. What is pending of an entry
-- that the stream does not have is not kept.
local function set_groups(key, groups)
	for _, info in ipairs(call('XINFO', 'GROUPS', key)) do call('XGROUP', 'DESTROY', key, info[2]) end
	for _, group in ipairs(groups) do
		local name, last, read, pending = unpack(group, 1, 4)
		if read then
			call('XGROUP', 'CREATE', key, name, last, 'ENTRIESREAD', format('%.0f', read))
		else
			call('XGROUP', 'CREATE', key, name, last)
		end
		for i = 1, #pending do
			local id, consumer, idle, times = unpack(pending[i])
			call('XCLAIM', key, name, consumer, '0', id, 'IDLE', format('%.0f', idle), 'RETRYCOUNT',
				format('%.0f', times), 'FORCE', 'JUSTID')
		end
	end
end

-- put writes the value of the effect e of origin, S or R, which expires at pxat. A stream keeps the groups that it has
-- here.
local function put(e, origin, pxat)
	local key, value = e[4], e[5]
	if e[1] == 'S' then
		if pxat == '' then
			call('SET', key, value)
		else
			call('SET', key, value, 'PXAT', pxat)
		end
		return
	end
	local groups = origin ~= c.zone and groups_of(key)
	call('RESTORE', key, pxat == '' and '0' or pxat, value, 'REPLACE', 'ABSTTL')
	if groups and kind_of(key) == 'stream' then set_groups(key, groups) end
end
